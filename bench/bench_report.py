"""Results as a Markdown table and as a picture. Nothing is computed here that the JSON lacks."""
from xml.sax.saxutils import escape

STATES = ("route", "dispatch", "compute", "combine")
GB = 1e9


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(["---"] + ["---:"] * (len(head) - 1)) +
             "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def percent(share):
    return f"{100 * share:.0f} %"


def megabytes(n):
    return f"{n / 1e6:,.0f}"


def number(x):
    return f"{x:,.0f}" if x >= 100 else f"{x:.1f}"


def best(limits, kind, unit):
    return max(entry[unit] for entry in limits[kind])


def limits_section(result):
    limits, machine = result["limits"], result["machine"]
    threads = sorted({d["threads"] for d in limits["dram"]})
    read = {(d["streams"], d["threads"]): d["gbps"] for d in limits["dram"]}
    rows = [[f"DRAM read, {s} stream{'s' if s > 1 else ''} a thread, GB/s"] +
            [f"{read[s, t]:.1f}" for t in threads] for s in sorted({s for s, _ in read})]
    for kind, name in (("fma", "floats"), ("bf16", "pairs of bf16"), ("int8", "bytes")):
        rows.append([f"multiply-adds of {name} in registers ({limits['kernels']}), G operations/s"] +
                    [f"{f['gflops']:.0f}" for f in limits[kind]])
    return (f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / GB:.0f} GB, "
            f"last cache {machine['last_cache_bytes'] >> 20} MiB, Linux {machine['kernel']}, load "
            f"average {machine['load_average']:.1f} before the run.\n\n" +
            table(["limit", *(f"{t} thread{'s' if t > 1 else ''}" for t in threads)], rows))


def streams_section(result):
    rows = [[f"{s['transport']}, " + ("empty" if s["bytes"] == 16 else f"{s['bytes'] >> 10} KiB"),
             *(f"{s[c + '_p50_us']:.0f} / {s[c + '_p99_us']:.0f}"
               for c in ("raw", "stream", "fan_out", "fan_out_2")),
             f"{s['stream_to_raw']:.1f}", f"{s['fan_out_to_raw']:.1f}",
             f"{s['messages_per_s_8']:,.0f}", f"{s['gbps_8']:.2f}"] for s in result["streams"]]
    return table(["us, p50 / p99", "bare socket", "stream", "fan-out", "fan-out to 2",
                  "stream : bare", "fan-out : bare", "messages/s, 8 in flight", "GB/s"], rows)


def speed_rows(model):
    def at_once(m, n):
        rate, share = m[f"at_once_{n}_tokens_per_s"], m[f"at_once_{n}_dram_share"]
        return f"{number(rate)} ({percent(share)})"

    for name, c in model["configurations"].items():
        m = c["median"]
        yield [name, number(m["decode_tokens_per_s"]), percent(m["decode_dram_share"]),
               f"{m['decode_to_one_process']:.2f}",
               at_once(m, 8), at_once(m, 16),
               number(m["prefill_tokens_per_s"]), percent(m["prefill_peak_share"]),
               f"{m['prefill_to_one_process']:.2f}"]


HIDDEN_OF_EXCHANGES = {192: "trio", 2048: "olmoe"}  # what bench_stream --layers measures


def bare_us(result, model, name):
    """Of the exchanges of one row's layer call: round trips of streams, and fan-outs from a thread
    that waits, the second to two servers. None where there are no figures of that width."""
    shape = HIDDEN_OF_EXCHANGES.get(model["shape"]["hidden"])
    if shape is None or not name.startswith("cluster"):
        return None
    e = next(e for e in result["exchanges"] if (e["layer"], e["rows"]) == (shape, 1))
    if "gate in process" in name:
        return e["dispatch_stream_p50_us"], e["dispatch_fan_out_2_p50_us"]
    return e["route_stream_p50_us"] + e["dispatch_stream_p50_us"], e["layer_p50_us"]


def layer_rows(result, model):
    for name, c in model["configurations"].items():
        m = c["median"]
        bare = bare_us(result, model, name)
        overhead_us = sum(m[f"layer_{s}_us"] for s in STATES if s != "compute")
        yield [name, *(f"{m[f'layer_{s}_us']:.0f}" for s in STATES),
               f"{sum(m[f'layer_{s}_us'] for s in STATES):.0f}", f"{m['token_us']:,.0f}",
               f"{m['rest_us']:,.0f}",
               *(f"{overhead_us / b:.2f}" if bare else "" for b in bare or (None, None))]


def memory_rows(model):
    for name, c in model["configurations"].items():
        peaks = c["peak_bytes"]
        yield [name, ", ".join(f"{p} {megabytes(n)}" for p, n in peaks.items()),
               megabytes(sum(peaks.values())),
               f"{sum(peaks.values()) / model['shape']['weight_bytes']:.2f}"]


def model_section(result, name, model):
    s = model["shape"]
    dram = [best(l, "dram", "gbps") for l in model["limits"]]
    fma = [best(l, "fma", "gflops") for l in model["limits"]]
    note = " The weights fit in the last cache: shares of DRAM mean nothing." \
        if model["fits_in_cache"] else ""
    return (
        f"## {name}\n\n{s['layers']} layers, hidden {s['hidden']}, {s['experts']} experts of width "
        f"{s['expert_width']}, top-{s['top_k']}, vocabulary {s['vocab']}, stored as {s['dtype']}: "
        f"{megabytes(s['weight_bytes'])} MB of weights, {megabytes(s['token_bytes'])} MB read for "
        f"a token decoded alone, {s['prompt_flops'] / 1e6:,.0f} MFLOP for a prompt token.{note}\n"
        f"Limits during these figures: DRAM {min(dram):.1f} to {max(dram):.1f} GB/s, multiply-adds "
        f"{min(fma):.0f} to {max(fma):.0f} GFLOP/s. Greedy tokens of {model['checked']['prompts']} "
        f"prompts were equal everywhere (against: {model['checked']['against']}).\n\n"
        f"Tokens a second: decode of {model['decode_tokens']} tokens, prefill of "
        f"{model['prompt_tokens']}.\n\n" +
        table(["", "decode", "of DRAM", ": one process", "8 at once (of DRAM)",
               "16 at once (of DRAM)", "prefill", "of peak", ": one process"], speed_rows(model)) +
        "\nA layer call of one decoded token, us; the rest is attention, norms, head, and the loop "
        "around.\n\n" +
        table(["", *STATES, "layer call", "token", "rest of the token",
               "all but compute : bare streams", ": bare fan-outs"], layer_rows(result, model)) +
        "\nPeak memory, MB.\n\n" + table(["", "each process", "all", ": weights"],
                                    memory_rows(model)))


def markdown(result):
    quick = " **Quick run: not for keeping.**" if result["quick"] else ""
    return (f"# {result['date'][:16]}, commit {result['commit']}\n\n{result['rounds']} rounds in "
            f"alternation, {result['threads']} threads a process, medians; shares and ratios are "
            f"those of a round.{quick} What the columns mean: bench/README.md.\n\n"
            f"## Limits\n\n{limits_section(result)}\n## Messages\n\n{streams_section(result)}\n" +
            "\n".join(model_section(result, n, m) for n, m in result["models"].items()))


# ---- the picture: decode of one sequence, a bar a configuration, the limit as a line ----

WIDTH, LEFT, BAR, GAP, TOP = 900, 250, 22, 8, 56
COLOURS = ("#3b6ea5", "#7fa650", "#c97b3a", "#8d6cab", "#4f9d9d", "#a0a0a0")


def bars(name, model, y):
    """Lines of SVG, and where the next group may begin."""
    limit = max(best(l, "dram", "gbps") for l in model["limits"]) * GB / \
        model["shape"]["token_bytes"]
    speeds = {n: c["median"]["decode_tokens_per_s"] for n, c in model["configurations"].items()}
    scale_end = max(speeds.values()) if model["fits_in_cache"] else max(limit, *speeds.values())
    scale = (WIDTH - LEFT - 120) / scale_end
    out = [f'<text x="10" y="{y}" font-weight="bold">{escape(name)}: decode, one sequence, tokens/s'
           '</text>']
    y += 12
    begin = y
    for colour, (label, speed) in zip(COLOURS, speeds.items()):
        out += [f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>',
                f'<rect x="{LEFT}" y="{y}" width="{speed * scale:.1f}" height="{BAR}" '
                f'fill="{colour}"/>',
                f'<text x="{LEFT + speed * scale + 6:.1f}" y="{y + 15}">{number(speed)}</text>']
        y += BAR + GAP
    if not model["fits_in_cache"]:
        x = LEFT + limit * scale
        out += [f'<line x1="{x:.1f}" y1="{begin}" x2="{x:.1f}" y2="{y}" stroke="#b03030" '
                'stroke-dasharray="4 3"/>',
                f'<text x="{x + 4:.1f}" y="{y + 2}" fill="#b03030">DRAM: {number(limit)}</text>']
    return out, y + 34


def svg(result):
    out, y = [], TOP
    for name, model in result["models"].items():
        lines, y = bars(name, model, y)
        out += lines
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" '
            'font-family="sans-serif" font-size="13">\n'
            f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>\n'
            f'<text x="10" y="24" font-size="16">Switchyard, commit {escape(result["commit"])}, '
            f'{escape(result["machine"]["cpu"])}, {result["machine"]["cores"]} cores</text>\n' +
            "\n".join(out) + "\n</svg>\n")
