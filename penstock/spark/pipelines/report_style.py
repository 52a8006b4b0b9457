"""How a report looks: one style sheet inside the page, for light and dark screens, for paper and for small ones.

Rule: no font, image, script or style is loaded from anywhere; the page's content policy forbids it.
"""

from __future__ import annotations

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_LIGHT = ("#2563a8", "#c2570c", "#2e7d4f", "#8e44ad", "#b8860b", "#0f7c8a", "#b03060", "#5d6d7e")
_DARK = ("#6cb0f5", "#f59e5b", "#6fcf97", "#c792ea", "#e6c65c", "#5fd0de", "#f48fb1", "#a7b6c4")


def _colours(values: tuple[str, ...]) -> str:
    return "".join(f"--c{i}:{value};" for i, value in enumerate(values))


def _classes() -> str:
    return "".join(
        f".s{i}{{stroke:var(--c{i})}}.f{i}{{fill:var(--c{i})}}.k{i}{{background:var(--c{i})}}"
        for i in range(len(_LIGHT))
    )


STYLE = (
    ":root{color-scheme:light dark;--ground:#fff;--card:#f6f7f9;--text:#1c2430;--soft:#5b6775;--line:#d9dee5;"
    "--bad:#b3261e;--bad-ground:#fdecea;--good:#1e7d3c;--good-ground:#e8f5ec;" + _colours(_LIGHT) + "}"
    "@media (prefers-color-scheme:dark){:root{--ground:#14181f;--card:#1d232c;--text:#e6eaf0;--soft:#9aa6b4;"
    "--line:#343d49;--bad:#ff8a80;--bad-ground:#3a1f1f;--good:#7ddc9a;--good-ground:#1c3325;"
    + _colours(_DARK)
    + "}}"
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--ground);color:var(--text);font:15px/1.5 system-ui,sans-serif}"
    "main{max-width:1040px;margin:0 auto;padding:28px 20px 60px}"
    "h1{font-size:24px;margin:0 0 4px}h2{font-size:19px;margin:44px 0 10px;padding-top:10px;"
    "border-top:1px solid var(--line)}h3{font-size:15px;margin:22px 0 6px}"
    "p{margin:6px 0}.soft{color:var(--soft)}a{color:var(--c0)}"
    "nav{display:flex;flex-wrap:wrap;gap:4px 16px;margin:16px 0}"
    ".verdict{display:inline-block;padding:3px 12px;border-radius:14px;font-weight:600}"
    ".bad{color:var(--bad);background:var(--bad-ground)}.good{color:var(--good);background:var(--good-ground)}"
    ".cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px;margin:18px 0}"
    ".card{background:var(--card);border-radius:8px;padding:10px 14px}.card b{display:block;font-size:20px}"
    ".card span{color:var(--soft);font-size:13px}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:14px}"
    "th,td{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}"
    "th{color:var(--soft);font-weight:600;white-space:nowrap}td.n,th.n{text-align:right;font-variant-numeric:"
    "tabular-nums;white-space:nowrap}td.t,th.t{white-space:nowrap}"
    "td.n+td.t,th.n+th.t,td.n+td.w,th.n+th.w{padding-left:14px}td.w{overflow-wrap:anywhere}"
    ".mark{display:inline-block;padding:0 8px;border-radius:9px;font-size:12.5px;font-weight:600}"
    ".note{color:var(--soft);background:var(--card)}"
    "svg{display:block;width:100%;height:auto;margin:8px 0}"
    "svg text{font:12px system-ui,sans-serif;fill:var(--soft)}svg text.label{fill:var(--text)}"
    "svg .grid{stroke:var(--line);stroke-width:1}svg polyline{fill:none;stroke-width:2;stroke-linejoin:round}"
    ".legend{display:flex;flex-wrap:wrap;gap:2px 18px;font-size:13px;color:var(--soft);margin:0 0 0 62px}"
    ".legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}"
    "@media print{body{font-size:12px}h2{break-after:avoid}svg,table{break-inside:avoid}}" + _classes()
)
