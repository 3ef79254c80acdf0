"""In: records and analyses. Out: Table 1, the figures, the pivot browser's data and the page."""


localrules:
    table,
    decomposition,
    figures,
    report,
    rule_graph,


rule table:
    input:
        analyses=per_configuration("analysis/{configuration}.json"),
        invariance=invariance_checks,
        registration=f"{RESULTS}/registration.json",
    output:
        csv=report(
            f"{RESULTS}/tables/table1.csv",
            caption="../report/table1.rst",
            category="Tables",
            labels={"table": "Table 1"},
        ),
        md=f"{RESULTS}/tables/table1.md",
        tex=f"{RESULTS}/tables/table1.tex",
    log:
        f"{RESULTS}/logs/table.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job={"rows": STUDY.rows, "note": STUDY.note, "code": code_digest("table")},
    script:
        "../scripts/table.py"


rule decomposition:
    input:
        analyses=per_configuration("analysis/{configuration}.json"),
        invariance=invariance_checks,
    output:
        csv=report(
            f"{RESULTS}/tables/table2.csv",
            caption="../report/table2.rst",
            category="Tables",
            labels={"table": "Table 2"},
        ),
        md=f"{RESULTS}/tables/table2.md",
        tex=f"{RESULTS}/tables/table2.tex",
    log:
        f"{RESULTS}/logs/decomposition.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job={"rows": STUDY.rows, "code": code_digest("controls_table")},
    script:
        "../scripts/controls_table.py"


rule figures:
    input:
        records=per_configuration("records/{configuration}.json"),
        analyses=per_configuration("analysis/{configuration}.json"),
        invariance=invariance_checks,
    output:
        pdf=expand(f"{RESULTS}/figures/figure{{n}}.pdf", n=FIGURES),
        png=report(
            expand(f"{RESULTS}/figures/figure{{n}}.png", n=FIGURES),
            caption="../report/figures.rst",
            category="Figures",
        ),
        csv=expand(f"{RESULTS}/figures/figure{{n}}.csv", n=FIGURES),
    log:
        f"{RESULTS}/logs/figures.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job={"rows": STUDY.rows, "code": code_digest("figures")},
    script:
        "../scripts/figures.py"


rule browser:
    input:
        records=f"{RESULTS}/records/{{configuration}}.json",
        trunks=of("configuration", all_trunks),
        passes=per_shard("passes/{configuration}/{shard}"),
        grades=measured(f"{RESULTS}/grades/{{configuration}}"),
        dataset=[] if STUDY.is_published else of("configuration", dataset_of),
        model=[] if STUDY.is_published else of("configuration", model_of),
    output:
        f"{RESULTS}/browser/{{configuration}}.json",
    log:
        f"{RESULTS}/logs/browser/{{configuration}}.log",
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        job={
            "budget": BROWSER_BYTES // len(STUDY.configurations),
            "code": code_digest("browser"),
        },
    script:
        "../scripts/browser.py"


rule rule_graph:
    output:
        f"{RESULTS}/report/rulegraph.svg",
    log:
        f"{RESULTS}/logs/rule_graph.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        # What decides of which rules there are, besides the rules themselves.
        job={
            "target": TARGET,
            "has_self_checks": bool(invariance_checks(None)),
            "code": code_digest("rule_graph", data=RULES),
        },
    script:
        "../scripts/rule_graph.py"


rule report:
    input:
        records=per_configuration("records/{configuration}.json"),
        analyses=per_configuration("analysis/{configuration}.json"),
        cohorts=expand(
            f"{RESULTS}/screen/{{trunk_set}}/cohort.json", trunk_set=STUDY.trunk_sets
        ),
        shards=measured(per_configuration("shards/{configuration}.json")),
        invariance=invariance_checks,
        registration=f"{RESULTS}/registration.json",
        rule_graph=f"{RESULTS}/report/rulegraph.svg",
        table=f"{RESULTS}/tables/table1.csv",
        figures=expand(f"{RESULTS}/figures/figure{{n}}.png", n=FIGURES),
        figure_data=expand(f"{RESULTS}/figures/figure{{n}}.csv", n=FIGURES),
        browser=per_configuration("browser/{configuration}.json"),
        claims=[f"{RESULTS}/claims.csv"] if STUDY.is_published else [],
    output:
        report(
            f"{RESULTS}/report/index.html",
            caption="../report/page.rst",
            category="Page",
            labels={"page": "Everything on one page"},
        ),
    log:
        f"{RESULTS}/logs/report.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        job={
            "run": STUDY.config["run"],
            "title": STUDY.config["title"],
            "rows": STUDY.rows,
            "published": PROVENANCE,
            "code": code_digest("report", data=TEMPLATES),
        },
    script:
        "../scripts/report.py"
