"use strict";
// Filters and the pivot browser. Without JavaScript the page shows everything but the browser.
(() => {
  const at = (id) => document.getElementById(id);

  /** An element with attributes (a property where the value is a function) and children. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") element[name] = value;
      else if (value !== false && value !== null) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  const data = JSON.parse(at("browser-data").textContent);
  const { configurations } = data;
  const boxes = [...at("filter").querySelectorAll("input")];
  const form = at("browse");
  const selects = ["configuration", "problem", "rollout", "position"].map(at);
  let shown = []; // the pivots of the configuration that fit the filters
  let chosen = 0; // which of them is looked at

  // --- Filter by configuration ---

  const selected = () => boxes.filter((box) => box.checked).map((box) => box.name);

  function applyFilter() {
    const names = selected();
    for (const element of document.querySelectorAll("[data-of]")) {
      const owners = element.dataset.of.split(" ");
      element.classList.toggle("out", !owners.some((owner) => names.includes(owner)));
    }
    at("filter-status").textContent =
      `${names.length} of ${boxes.length} configurations shown` +
      (names.length === boxes.length ? "." : `: ${labels(names) || "none"}.`);
    offer(selects[0], configurations.filter((c) => names.includes(c.name)), (c) => [c.name, c.label]);
    narrow();
  }

  const labels = (names) =>
    configurations.filter((c) => names.includes(c.name)).map((c) => c.label).join(", ");

  // --- Which pivots there are to choose from ---

  const configuration = () => configurations.find((c) => c.name === selects[0].value);
  const passes = () => configuration().passes.map((name) => data.passes[name]);
  const keys = ["problem_id", "rollout", "abs_pos"];

  function fits(pivot) {
    const { changed, reversed, eligible, margin } = form.elements;
    return (
      (!changed.checked || pivot.changed.length > 0) &&
      (!reversed.checked || pivot.reversed.length > 0) &&
      (!eligible.checked || pivot.eligible) &&
      (margin.value === "" || pivot.margin < Number(margin.value))
    );
  }

  /** Fill a select; what was chosen stays chosen where it can. */
  function offer(select, items, describe) {
    const before = select.value;
    const options = new Map(items.map((item) => describe(item).map(String)));
    select.replaceChildren(...[...options].map(([value, text]) => make("option", { value }, text)));
    if (options.has(before)) select.value = before;
  }

  /** After a change of configuration or filter: keep the pivot if it still fits. */
  function narrow() {
    const before = shown[chosen];
    shown = configuration()?.pivots.filter(fits) ?? [];
    const same = (pivot) => before && keys.every((key) => pivot[key] === before[key]);
    choose(Math.max(0, shown.findIndex(same)));
  }

  function choose(index) {
    chosen = index;
    const pivot = shown[index];
    const levels = keys.map((_, level) =>
      shown.filter((other) => keys.slice(0, level).every((key) => other[key] === pivot[key])),
    );
    const texts = [
      (p) => String(p.problem_id),
      (p) => `${p.rollout}${rolloutOf(p) ? (rolloutOf(p).right ? ", right" : ", not right") : ""}`,
      (p) => `${p.abs_pos}, ${signs(p)}, margin ${p.margin.toFixed(2)}`,
    ];
    keys.forEach((key, level) => {
      const select = selects[level + 1];
      offer(select, levels[level], (p) => [p[key], texts[level](p)]);
      if (pivot) select.value = pivot[key];
    });
    at("previous").disabled = index <= 0;
    at("next").disabled = index >= shown.length - 1;
    at("browse-status").textContent = pivot
      ? `Pivot ${index + 1} of ${shown.length} that fit: problem ${pivot.problem_id}, ` +
        `rollout ${pivot.rollout}, position ${pivot.abs_pos}; ${signs(pivot)}.`
      : "No pivot fits.";
    at("pivot").hidden = !pivot;
    at("pivot").replaceChildren(...(pivot ? view(pivot) : []));
  }

  /** Problem or rollout was chosen: its first pivot that fits. */
  function follow(level) {
    const wanted = selects.slice(1, level + 1).map((select) => select.value);
    choose(shown.findIndex((p) => wanted.every((value, i) => String(p[keys[i]]) === value)));
  }

  const rolloutOf = (p) => configuration().rollouts[`${p.problem_id}/${p.rollout}`];

  function signs(pivot) {
    const name = (pass) => data.passes[pass].label;
    const told = pivot.changed.map(
      (pass) => `${pivot.reversed.includes(pass) ? "polarity reversed" : "sign changed"} under ${name(pass)}`,
    );
    return told.join(", ") || (pivot.eligible ? "no sign change" : "not eligible");
  }

  // --- One pivot ---

  function view(pivot) {
    const problem = configuration().problems[pivot.problem_id];
    const rollout = rolloutOf(pivot);
    return [
      make("h3", { id: "pivot-title" },
        `Problem ${pivot.problem_id}, rollout ${pivot.rollout}, position ${pivot.abs_pos}`),
      ...(problem
        ? [make("h4", {}, "Question"), make("p", { class: "said" }, problem.question),
           make("p", { class: "small" }, `Reference answer: ${problem.answer}`)]
        : []),
      ...(rollout ? transcript(pivot, rollout) : []),
      measured(pivot),
      ...(pivot.arms ?? []).map((arm, i) => armView(arm, ["Actual", "Alternative"][i], pivot)),
    ];
  }

  function transcript(pivot, { segments, at: positions, right }) {
    const title = make("h4", {}, `Transcript (${right ? "right" : "not right"})`);
    if (!segments) return [title, make("p", { class: "small" }, "The transcript is not stored.")];
    const pieces = segments.map((text, i) => (i % 2 ? pivotMark(pivot, text, positions[(i - 1) / 2]) : text));
    return [title, make("p", { class: "said", id: "transcript" }, ...pieces)];
  }

  /** A token whose spaces and line breaks can be seen. */
  const visible = (token) => token.replaceAll(" ", "␣").replaceAll("\n", "⏎") || "(no text)";

  /** A pivot in the transcript: a button where it can be chosen. */
  function pivotMark(pivot, token, position) {
    const text = token.trim() ? token : visible(token);
    const current = position === pivot.abs_pos;
    const index = shown.findIndex(
      (p) => p.problem_id === pivot.problem_id && p.rollout === pivot.rollout && p.abs_pos === position,
    );
    if (index < 0) return make("mark", { title: `pivot at ${position}` }, text);
    return make("button", {
      type: "button", class: "mark", title: `pivot at ${position}`, "aria-current": current && "true",
      onclick: () => { choose(index); at("transcript").querySelector("[aria-current]").focus(); },
    }, text);
  }

  function measured(pivot) {
    const unknown = "—";
    const yes = (value) => (value == null ? unknown : value ? "yes" : "no");
    const span = (range) => (range ? (range[0] === range[1] ? range[0] : `${range[0]} to ${range[1]}`) : unknown);
    const rows = passes().map((pass, i) => {
      const cells = [
        signed(pivot.estimates[i]), pass.warm ? yes(pivot.resumed[i]) : "recomputed",
        span(pivot.cached[i]), yes(pivot.preempted[i]),
      ];
      return make("tr", {}, make("th", { scope: "row", class: "text" }, pass.label),
        ...cells.map((cell) => make("td", {}, String(cell))));
    });
    const heads = ["Pass", "Estimate", "Resumed", "Cached tokens", "Preempted"].map((head, i) =>
      make("th", { scope: "col", class: i ? false : "text" }, head));
    const caption = `Estimates and cache: margin ${pivot.margin.toFixed(3)} nats, borrowed blocks ` +
      `${pivot.borrowed_blocks ?? unknown}, flags: ${pivot.flags ? pivot.flags.join(", ") || "none" : unknown}`;
    return make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Estimates and cache" },
      make("table", {}, make("caption", {}, make("span", {}, caption)),
        make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)));
  }

  const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(3).replace(/\.?0+$/, "");

  function armView(arm, name, pivot) {
    const sampled = arm.continuations.filter((c) => c.k !== "greedy").length;
    return make("section", { class: "arm", "aria-label": `${name} arm` },
      make("h4", {}, `${name} arm: token `, make("mark", {}, visible(arm.token))),
      ...arm.continuations.map((c) => {
        const title = c.k === "greedy" ? "Greedy probe, not graded" : `Continuation ${c.k + 1} of ${sampled}`;
        const cells = passes().map((pass, i) => passView(pass, c, c.passes[i] ?? c.passes[0]));
        return make("div", { role: "group", "aria-label": title },
          make("h5", {}, title), make("div", { class: "passes" }, ...cells));
      }));
  }

  /** One continuation under one pass; what is not as under exact 1 is marked. */
  function passView(pass, { text }, { shared, rest, token, outcome, answer, finish }) {
    const kept = [...text].slice(0, shared).join("");
    const facts = [
      outcome && `${outcome}${answer == null ? "" : `, answer ${answer}`}`,
      finish === "length" && "cut off",
      !pass.reference && (token === null ? "as exact 1" : `differs from token ${token}`),
    ].filter(Boolean).join("; ");
    const said = make("p", { class: token === null && !pass.reference ? "said same" : "said" }, kept);
    if (token !== null) said.append(make("mark", { class: "differs" }, rest || "(ends here)"));
    return make("div", { role: "group", "aria-label": pass.label },
      make("p", { class: "small" }, make("strong", {}, pass.label), facts && `: ${facts}`), said);
  }

  // --- Start ---

  boxes.forEach((box) => box.addEventListener("change", applyFilter));
  at("all").addEventListener("click", () => {
    boxes.forEach((box) => { box.checked = true; });
    applyFilter();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.querySelector("fieldset").addEventListener("input", narrow);
  selects[0].addEventListener("change", narrow);
  selects.slice(1).forEach((select, i) => select.addEventListener("change", () => follow(i + 1)));
  at("previous").addEventListener("click", () => choose(chosen - 1));
  at("next").addEventListener("click", () => choose(chosen + 1));
  at("filter").hidden = form.hidden = false;
  applyFilter();
  choose(Math.max(0, shown.findIndex((pivot) => pivot.changed.length > 0)));
})();
