"""Curves as Markdown tables and as one picture. Nothing is computed here that the JSON lacks, but the
ratio to the law."""
import math
from xml.sax.saxutils import escape

from bench_report import number, table

WIDTH, HEIGHT, MARGIN, TITLE = 460, 300, 52, 40
COLOURS = {"one process": "#3b6ea5", "cluster": "#c97b3a", "law": "#707070"}


def markdown(result):
    quick = " **Quick run: not for keeping.**" if result["quick"] else ""
    parts = [f"# Growth, {result['date'][:16]}, commit {result['commit']}\n\n"
             f"{result['machine']['cpu']}, {result['machine']['cores']} cores; {result['rounds']} "
             f"rounds in alternation, {result['threads']} threads a process, medians.{quick} "
             "Microseconds a token (decode); in brackets: times the law. The cluster: two expert "
             "nodes unless said otherwise, one router, one aggregator, on the same cores.\n"]
    for name, curve in result["curves"].items():
        names = list(curve["points"][0]["us"])
        rows = [[f"{p['x']:,}", *(f"{number(p['us'][n])} ({p['us'][n] / p['law_us']:.2f})"
                                  for n in names), number(p["law_us"])] for p in curve["points"]]
        parts.append(f"## {name}\n\nLaw: {curve['law']}.\n\n" +
                     table([curve["x"], *names, "law"], rows))
    return "\n".join(parts)


class Axes:
    """Both logarithmic: a law that is a power is a straight line."""

    def __init__(self, curve):
        xs = [p["x"] for p in curve["points"]]
        ys = [v for p in curve["points"] for v in (*p["us"].values(), p["law_us"])]
        self.x0, self.x1 = math.log(xs[0]), math.log(xs[-1] if len(xs) > 1 else xs[0] * 2)
        self.y0, self.y1 = math.log(min(ys) / 1.3), math.log(max(ys) * 1.3)

    def at(self, x, y):
        fx = (math.log(x) - self.x0) / (self.x1 - self.x0)
        fy = (math.log(y) - self.y0) / (self.y1 - self.y0)
        return MARGIN + fx * (WIDTH - 2 * MARGIN), HEIGHT - MARGIN - fy * (HEIGHT - 2 * MARGIN)


def line(axes, points, colour, dashed):
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (axes.at(*p) for p in points))
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    dots = "" if dashed else "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
                                     for x, y in (axes.at(*p) for p in points))
    return f'<polyline points="{path}" fill="none" stroke="{colour}"{dash}/>{dots}'


def chart(name, curve):
    axes, points = Axes(curve), curve["points"]
    out = [f'<text x="{MARGIN}" y="24" font-weight="bold">{escape(name)}: us a token</text>',
           f'<rect x="{MARGIN}" y="{MARGIN}" width="{WIDTH - 2 * MARGIN}" '
           f'height="{HEIGHT - 2 * MARGIN}" fill="none" stroke="#c0c0c0"/>',
           f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(curve["x"])}'
           '</text>']
    for p in points:
        x, _ = axes.at(p["x"], p["law_us"])
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle" '
                   f'font-size="10">{p["x"]}</text>')
    for value in (math.exp(axes.y0) * 1.3, math.exp(axes.y1) / 1.3):
        _, y = axes.at(points[0]["x"], value)
        out.append(f'<text x="{MARGIN - 4}" y="{y + 4:.1f}" text-anchor="end" font-size="10">'
                   f'{number(value)}</text>')
    for i, label in enumerate((*points[0]["us"], "law")):
        values = [(p["x"], p["law_us"] if label == "law" else p["us"][label]) for p in points]
        out.append(line(axes, values, COLOURS[label], label == "law"))
        out.append(f'<text x="{MARGIN + 8 + 100 * i}" y="{TITLE + 4}" font-size="11" '
                   f'fill="{COLOURS[label]}">{escape(label)}</text>')
    return out


def svg(result):
    curves = list(result["curves"].items())
    rows = (len(curves) + 1) // 2
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{rows * HEIGHT}" '
           'font-family="sans-serif" font-size="13">',
           f'<rect width="{2 * WIDTH}" height="{rows * HEIGHT}" fill="#ffffff"/>']
    for i, (name, curve) in enumerate(curves):
        out += [f'<g transform="translate({i % 2 * WIDTH},{i // 2 * HEIGHT})">',
                *chart(name, curve), "</g>"]
    return "\n".join([*out, "</svg>\n"])
