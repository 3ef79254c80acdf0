"""The graph of a run's rules as SVG: which rule takes what another makes."""

from collections.abc import Iterable, Iterator

from grandalf.graphs import Edge, Vertex, graph_core
from grandalf.layouts import SugiyamaLayout
from grandalf.routing import EdgeViewer, route_with_lines
from markupsafe import Markup, escape
from networkx import DiGraph, transitive_reduction, weakly_connected_components

from replay.dag import Job

CHARACTER, HEIGHT, GAP = 7.5, 26, 34  # of a box, in pixels


class Box:
    """What the layout needs of a rule: its size. It sets the middle, `xy`."""

    def __init__(self, name: str):
        self.w, self.h = CHARACTER * len(name) + 20, HEIGHT
        self.xy = (0.0, 0.0)


def edges_of(jobs: Iterable[Job]) -> list[tuple[str, str]]:
    """Pairs of rules, the maker first; without those that follow from a longer way."""
    edges = {(maker, job.rule) for job in jobs for maker in job.needs}
    return sorted(transitive_reduction(DiGraph(sorted(edges))).edges)


def svg(names: list[str], edges: list[tuple[str, str]]) -> Markup:
    """The graph, drawn in layers from top to bottom. It takes the colours of the page around it."""
    vertices = {name: Vertex(name) for name in names}
    for name, vertex in vertices.items():
        vertex.view = Box(name)
    lines = [Edge(vertices[a], vertices[b]) for a, b in edges]
    for line in lines:
        line.view = EdgeViewer()
    left = 0.0
    drawn: list[str] = []
    height = 0.0
    for component in _components(vertices, lines):
        layout = SugiyamaLayout(component)
        layout.route_edge = route_with_lines
        layout.xspace, layout.yspace = GAP, GAP
        layout.init_all(optimize=True)
        layout.draw(10)
        boxes = [vertex.view for vertex in component.sV]
        shift = left - min(box.xy[0] - box.w / 2 for box in boxes)
        top = min(box.xy[1] for box in boxes) - HEIGHT
        drawn += [_line(line.view._pts, shift, top) for line in component.sE]
        drawn += [_box(vertex.data, vertex.view, shift, top) for vertex in component.sV]
        left = max(box.xy[0] + box.w / 2 for box in boxes) + shift + GAP
        height = max(height, max(box.xy[1] for box in boxes) - top + HEIGHT)
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 0 {left - GAP + 4:.0f} {height:.0f}"'
        f' width="{left - GAP + 4:.0f}" role="img" fill="none" stroke="currentColor"'
        ' font-family="sans-serif" font-size="12"><title>Graph of the rules</title>'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="currentColor" stroke="none"/>'
        f"</marker></defs>{''.join(drawn)}</svg>\n"
    )


def _components(vertices: dict[str, Vertex], lines: list[Edge]) -> Iterator[graph_core]:
    """The connected parts; Grandalf's own way to them goes through a set, in any order."""
    graph = DiGraph((line.v[0].data, line.v[1].data) for line in lines)
    graph.add_nodes_from(vertices)
    parts = enumerate(weakly_connected_components(graph))
    of = {name: number for number, part in parts for name in part}
    for part in dict.fromkeys(of[name] for name in vertices):
        inside = [vertex for name, vertex in vertices.items() if of[name] == part]
        yield graph_core(inside, [line for line in lines if of[line.v[0].data] == part])


def _line(points: list[tuple[float, float]], left: float, top: float) -> str:
    path = "L".join(f"{x + left:.1f} {y - top:.1f}" for x, y in points)
    return f'<path d="M{path}" marker-end="url(#arrow)"/>'


def _box(name: str, box: Box, left: float, top: float) -> str:
    x, y = box.xy[0] + left, box.xy[1] - top
    return (
        f'<rect x="{x - box.w / 2:.1f}" y="{y - box.h / 2:.1f}" width="{box.w:.1f}"'
        f' height="{box.h}" rx="5"/><text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle"'
        f' fill="currentColor" stroke="none">{escape(name)}</text>'
    )
