"""The documents are part of the product: links lead somewhere, generated pages are fresh, examples run."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from penstock import testing
from scripts import docs_config, uncompiled

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md")
    ),
    *sorted(DOCS.rglob("*.md")),
    ROOT / "examples" / "README.md",
]
PAGE_NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
each_page = pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)

FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.M)
REGISTRY_HOSTS = re.compile(
    r"pypi\.|pythonhosted|npmjs|registry\.|repo\d?\.maven|maven\.apache\.org|docker\.io|ghcr\.io|quay\.io|"
    r"conda\.|crates\.io|jfrog|--index-url|--extra-index",
    re.I,
)
MACHINE_PATHS = re.compile(r"(?<![\w.~])/(?:home|root|work|tmp|Users|opt|mnt|var|usr|srv)/[\w.-]+")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCED.sub("", text_of(page))


def anchors(page: Path) -> set[str]:
    """What a link may name after `#`: headings as GitHub writes them."""
    return {
        re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).strip().replace(" ", "-")
        for title in HEADING.findall(prose_of(page))
    }


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Relative links: as written, the file they mean, the anchor."""
    for link in LINK.findall(prose_of(page)):
        if "://" not in link and not link.startswith("mailto:"):
            path, _, anchor = link.partition("#")
            yield link, (page.parent / path).resolve() if path else page, anchor


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link, target, anchor in links(page):
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_a_broken_link_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`\n[a](other.md) [b](page.md#one-two) [c](#three)\n```\n[d](no.md)\n```\n", "utf-8"
    )
    found = [(link, target.is_file(), anchor in anchors(page)) for link, target, anchor in links(page)]
    assert found == [("other.md", False, False), ("page.md#one-two", True, True), ("#three", True, False)]


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting.extend(
                target for _, target, _ in links(page) if target.suffix == ".md" and target.is_file()
            )
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []


def test_pages_that_sources_mention_exist() -> None:
    sources = [*sorted((ROOT / "penstock").rglob("*.py")), ROOT / "Makefile", ROOT / "pyproject.toml"]
    mentioned = {name for path in sources for name in re.findall(r"docs/[\w/-]+\.md", text_of(path))}
    assert {"docs/configuration.md", "docs/guarantees.md"} <= mentioned
    assert [name for name in sorted(mentioned) if not (ROOT / name).is_file()] == []


def test_source_files_that_pages_mention_exist() -> None:
    """A path in backticks that begins with a folder of the project and ends like a source file."""
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in re.findall(r"`((?:penstock|tests|scripts)/[\w/.-]+\.(?:py|pxd))`", text_of(page))
        if not (ROOT / name).is_file()
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("heading", "room"),
    [
        ("Inside the store", "store"),
        ("Inside the broker", "broker"),
        ("Inside a client", "client"),
        ("Inside replication", "replication"),
    ],
)
def test_modules_named_in_the_architecture_exist(heading: str, room: str) -> None:
    """The tables name files relative to their room, and the classes that are in them."""
    section = text_of(DOCS / "architecture.md").partition(f"## {heading}")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`?[^|]+) \| ([^|]+) \|", section, re.M)[2:]
    named = {name for _, files in rows for name in re.findall(r"`([\w/]+\.py)`", files)}
    assert len(named) > 10
    folder = ROOT / "penstock" / room
    found = {name: folder / name for name in named if (folder / name).is_file()}
    found |= {name: ROOT / "penstock" / name for name in named if name.startswith("_hot/")}
    assert named == set(found)
    for parts, files in rows:
        sources = "".join(text_of(found[name]) for name in re.findall(r"`([\w/]+\.py)`", files))
        for part in re.findall(r"`(\w+)`", parts):
            assert not sources or re.search(rf"^(class|def) {part}\b", sources, re.M), part


def test_every_decision_is_in_both_tables() -> None:
    for page in (DOCS / "decisions" / "README.md", DOCS / "architecture.md"):
        linked = {target for _, target, _ in links(page)}
        assert [decision.name for decision in DECISIONS if decision not in linked] == []


def test_configuration_page_is_what_the_options_say() -> None:
    assert text_of(DOCS / "configuration.md") == docs_config.render(docs_config.read_all()), (
        "run: make docs-config"
    )


OPTIONS_HOMES = {
    "ProcessOptions": "penstock.cli.options",
    "NameServerOptions": "penstock.nameserver.options",
    "BrokerOptions": "penstock.broker.options",
    "StoreOptions": "penstock.store.options",
    "ReplicationOptions": "penstock.replication.options",
    "CoordinatorOptions": "penstock.coordinator.options",
    "RemotingOptions": "penstock.remoting.options",
    "TlsOptions": "penstock.remoting.tls",
    "AccessOptions": "penstock.security.options",
    "ClientOptions": "penstock.client.options",
    "ProducerOptions": "penstock.client.options",
    "ConsumerOptions": "penstock.client.options",
}


def test_configuration_page_has_every_options_class() -> None:
    assert [group.name for group in docs_config.read_all()] == [*docs_config.SECTIONS] == [*OPTIONS_HOMES]
    sections = importlib.import_module("penstock.cli.config").SECTIONS
    servers = {name: section for section, (_, name) in sections.items()}
    assert servers == {name: docs_config.SECTIONS[name][0] for name in servers}


@pytest.mark.parametrize("name", OPTIONS_HOMES)
def test_configuration_page_shows_the_real_defaults(name: str) -> None:
    """The generator reads the source; this compares its defaults with the imported class."""
    real = getattr(importlib.import_module(OPTIONS_HOMES[name]), name)()
    (group,) = [group for group in docs_config.read_all() if group.name == name]
    assert [option.name for option in group.options] == list(real.__slots__)
    for option in group.options:
        value = getattr(real, option.name)
        shown = value.value if isinstance(value, Enum) else value
        assert option.default == docs_config.show_default(option.name, shown), option.name


@pytest.mark.parametrize(
    ("paragraph", "name"),
    [
        ("How long (sendMsgTimeout).", "sendMsgTimeout"),
        ("An address (brokerIP1).", "brokerIP1"),
        ("Entries (mappedFileSizeConsumeQueue / 20).", "mappedFileSizeConsumeQueue / 20"),
        ("A frame (com.rocketmq.remoting.frameMaxLength).", "com.rocketmq.remoting.frameMaxLength"),
        ("Tries (retryMaxTimes of the group).", "retryMaxTimes"),
        ("Time (awaitTermination; there it is 0).", "awaitTermination"),
        ("Nothing (as it is) of (theirs).", ""),
    ],
)
def test_the_name_in_rocketmq_is_found(paragraph: str, name: str) -> None:
    found = docs_config.ROCKETMQ_NAME.findall(paragraph)
    assert ("".join(found[0]) if found else "") == name


def test_an_option_without_a_paragraph_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "room" / "options.py"
    path.parent.mkdir()
    path.write_text(
        "@dataclass\nclass Options:\n    # Said.\n    a: int = 1 << 10\n\n    b: int = 2\n", "utf-8"
    )
    groups = list(docs_config.read_room(path))
    assert docs_config.unexplained(groups) == ["room: Options.b"]
    assert groups[0].options[0].default == "`1024`"


def test_check_mode_fails_on_a_stale_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "configuration.md"
    assert docs_config.main(["--check", str(page)]) == 1
    assert docs_config.main([str(page)]) == 0
    assert docs_config.main(["--check", str(page)]) == 0
    page.write_text(text_of(page) + "x", "utf-8")
    assert docs_config.main(["--check", str(page)]) == 1
    assert "make docs-config" in capsys.readouterr().err


def contrast(one: str, other: str) -> float:
    """How well two colours `#rrggbb` can be told apart (WCAG 2: 4.5 for text)."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((light(one), light(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_picture_is_ours_and_can_be_read_on_light_and_dark_pages() -> None:
    """No picture, font or script of others; text stands out from its box in both schemes."""
    picture = text_of(DOCS / "overview.svg")
    tree = ElementTree.fromstring(picture)
    assert not re.search(r"href|url\((?!#)|@import|<script|data:", picture)
    light, dark = picture.split("@media (prefers-color-scheme: dark)")
    for scheme in (light, dark):
        colours = dict(re.findall(r"\.(\w+) \{ (?:fill|stroke): (#\w{6})", scheme))
        assert {*colours} == {"panel", "box", "own", "name", "note", "line", "tip"}
        for text in ("name", "note"):
            assert min(contrast(colours[text], colours[box]) for box in ("panel", "box", "own")) >= 7
        assert contrast(colours["line"], colours["panel"]) >= 4.5
    assert tree.get("role") == "img"
    assert tree.find("{http://www.w3.org/2000/svg}title") is not None


def first_screen() -> str:
    """What a newcomer sees first, and a package index shows."""
    return text_of(ROOT / "README.md").partition("<!-- first screen: end -->")[0]


def test_first_screen_has_the_two_commands() -> None:
    section = first_screen().partition("## The two commands")[2].partition("\n## ")[0]
    commands = [line.split()[:2] for line in section.splitlines() if line.startswith("make ")]
    assert commands == [["make", "demo"], ["make", "test"]]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text_of(page), re.M | re.S)


def test_examples_pass_a_strict_type_check(tmp_path: Path) -> None:
    """As a user's mypy sees them, with the types that the package brings; so it sees a wrong call, too."""
    for page in (ROOT / "README.md", ROOT / "docs/quickstart.md", ROOT / "docs/clients.md"):
        for number, block in enumerate(python_blocks(page)):
            (tmp_path / f"{page.stem.lower()}_{number}.py").write_text(block)
    wrong = tmp_path / "wrong_call.py"
    wrong.write_text('import penstock\n\npenstock.Producer("a:1").send("T", b"x", tags="a")\n')
    arguments = ["-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path / "cache"), "."]
    done = run_python(arguments, tmp_path)
    assert {line.partition(": ")[0] for line in done.stdout.splitlines()[:-1]} == {"wrong_call.py:3"}, done
    assert 'Unexpected keyword argument "tags" for "send" of "Producer"' in done.stdout


def run_python(arguments: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_readme_example_runs(tmp_path: Path) -> None:
    """Twice: a newcomer will."""
    example = python_blocks(ROOT / "README.md")[0]
    assert len(example.splitlines()) <= 20
    with testing.broker() as address:
        for _ in range(2):
            done = run_python(["-W", "error", "-c", example.replace("127.0.0.1:9876", address)], tmp_path)
            assert done.returncode == 0, done.stderr
            printed = done.stdout.splitlines()
            assert [line.split()[0] for line in printed[:3]] == ["SEND_OK"] * 3
            assert sorted(printed[3:]) == [f"order {n} ['order-{n}']" for n in range(3)]


def test_readme_fixture_is_there(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(python_blocks(ROOT / "README.md")[1])
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "penstock.testing.plugin"]
    done = run_python(arguments, tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_commands_of_the_readme_are_known() -> None:
    """Lines of its `text` blocks that begin with `penstock`, or have it behind a pipe."""
    root = importlib.import_module("penstock.cli.main").root
    page = text_of(ROOT / "README.md")
    lines = [
        line
        for block in re.findall(r"^```text\n(.*?)^```$", page, re.M | re.S)
        for line in block.splitlines()
    ]
    commands = [
        match[1].split() for line in lines if (match := re.search(r"(?:^|\| )penstock (\w.*)$", line))
    ]
    assert len(commands) > 8
    for words in commands:
        assert words[0].strip(",") in root.list_commands(click.Context(root)), words


def error_classes() -> list[type]:
    errors = importlib.import_module("penstock.errors")
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.PenstockError)
    ]


def test_errors_page_names_every_class_with_its_code() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", text_of(DOCS / "errors.md"), re.M))
    assert rows == {error.__name__: str(error.code) for error in error_classes()}


def test_errors_page_says_which_classes_carry_a_flag() -> None:
    rows = {
        match[1]: match[2].lower()
        for match in re.finditer(r"^\| `(\w+)` (\|.*)$", text_of(DOCS / "errors.md"), re.M)
    }
    for error in error_classes():
        own = vars(error)
        for flag, words in (
            ("retriable", "retriable"),
            ("route_stale", "route stale"),
            ("outcome_unknown", "outcome unknown"),
        ):
            if own.get(flag):
                assert error.__name__ == "PenstockError" or words in rows[error.__name__], (
                    error.__name__,
                    flag,
                )


def test_errors_page_draws_the_tree_of_the_source() -> None:
    def drawn(text: str) -> list[tuple[int, str]]:
        found = re.findall(r"^([│├└─ ]*)(\w+Error)\b", text, re.M)
        return [(len(branch) // 4, name) for branch, name in found]

    errors = importlib.import_module("penstock.errors")
    page = next(block for block in FENCED.findall(text_of(DOCS / "errors.md")) if "PenstockError" in block)
    tree = drawn(page)
    assert tree == drawn(re.sub(r"^ {4}", "", str(errors.__doc__), flags=re.M))
    assert {name for _, name in tree} == {error.__name__ for error in error_classes()}
    by_depth: dict[int, type] = {}
    for depth, name in tree:
        error = getattr(errors, name)
        by_depth[depth] = error
        assert depth == 0 or error.__base__ is by_depth[depth - 1]


def kinds_made_in(folder: Path, makers: set[str]) -> set[str]:
    """First argument of every call of these names below a folder; a conditional expression has two."""
    kinds: set[str] = set()
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(text_of(path))):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).rpartition(".")[2] in makers
                and node.args
            ):
                first = node.args[0]
                options = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
                kinds.update(option.value for option in options if isinstance(option, ast.Constant))
    return kinds


def kinds_explained(heading: str) -> set[str]:
    section = text_of(DOCS / "operating" / "store.md").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \|", section, re.M)
    return {kind for row in rows for kind in re.findall(r"`([^`]+)`", row)}


def test_every_kind_of_finding_is_explained() -> None:
    # An audit on Spark has findings of its own, on its own page.
    kinds = kinds_made_in(ROOT / "penstock" / "store", {"Finding", "_note"})
    assert len(kinds) > 8
    assert kinds_explained("Findings") == kinds


def test_everything_that_verify_reports_is_explained() -> None:
    kinds = kinds_made_in(ROOT / "penstock" / "store" / "inspection", {"damage", "note", "tell"})
    assert len(kinds) > 8
    explained = kinds_explained("What verify reports")
    assert kinds - explained - kinds_explained("Findings") == set()
    assert explained - kinds == set()


SOURCES = [*(ROOT / "penstock").rglob("*.py"), *(ROOT / "pyspark_penstock").rglob("*.py")]


def test_extras_are_installed_from_a_clone() -> None:
    """No package index has Penstock: `pip install 'penstock[spark]'` cannot work, `pip install '.[spark]'` does."""
    extras = set(tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["optional-dependencies"])
    found: set[str] = set()
    for path in (*PAGES, *SOURCES):
        text = text_of(path)
        assert not re.search(r"\bpenstock\[\w+\]|pip install '?penstock", text), path
        found |= set(re.findall(r"pip install '\.\[(\w+)\]'|install_hint\([\"'](\w+)[\"']\)", text))
    named = {name for pair in found for name in pair if name}
    assert {"spark", "zookeeper", "acl"} <= named <= extras


@each_page
def test_no_registry_hosts_and_no_paths_of_a_machine(page: Path) -> None:
    found = REGISTRY_HOSTS.findall(text_of(page)) + MACHINE_PATHS.findall(text_of(page))
    assert found == []


@pytest.mark.parametrize(
    "text", ["see pypi.org", "pip --index-url x", "in /home/me/store", "`/tmp/x`", "(/work/main)"]
)
def test_such_things_would_be_noticed(text: str) -> None:
    assert REGISTRY_HOSTS.search(text) or MACHINE_PATHS.search(text)


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_decisions_have_their_parts(page: Path) -> None:
    headings = HEADING.findall(prose_of(page))
    assert headings[0].startswith(f"{page.name[:4]} ")
    assert headings[1:5] == ["Status", "Context", "Decision", "Consequences"]
    for part in re.split(r"^## .+$", prose_of(page), flags=re.M)[1:]:
        assert len(part.split()) >= 1, "a part is empty"


def test_decisions_are_numbered_without_holes() -> None:
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    assert len(DECISIONS) >= 12


@pytest.mark.parametrize("page", sorted((DOCS / "formats").glob("[a-z]*.md")), ids=lambda page: page.stem)
def test_format_pages_have_their_parts(page: Path) -> None:
    headings = HEADING.findall(prose_of(page))
    for wanted in ("Reader duties", "Writer duties", "Recovery"):
        assert wanted in headings
    assert any(heading.startswith("Example") for heading in headings)
    assert "golden: " in text_of(page)


def test_commands_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", text_of(ROOT / "Makefile"), re.M))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z][a-z-]*)", text_of(page)))
        named |= set(re.findall(r"^make ([a-z][a-z-]*)", text_of(page), re.M))
        assert named <= targets, page


COMMAND_PAGES = pytest.mark.parametrize(
    "page", [ROOT / "README.md", DOCS / "operating" / "store.md"], ids=["README", "store"]
)


@COMMAND_PAGES
@pytest.mark.parametrize("command", ["verify", "dump", "stats"])
def test_options_in_the_documents_exist(page: Path, command: str) -> None:
    store = importlib.import_module("penstock.cli.store").store
    known = {option for parameter in store.commands[command].params for option in parameter.opts}
    line = re.search(rf"^penstock store {command} DIR.*$", text_of(page), re.M)
    assert line, f"the page does not show `penstock store {command}`"
    assert set(re.findall(r"--[a-z-]+", line[0])) <= known
    assert "--json" in known
    sizes = {"--segment-size", "--queue-entries", "--index-slots", "--index-entries"}
    missing = known - sizes - {"directory", "--json"} - set(re.findall(r"--[a-z-]+", line[0]))
    assert missing == set(), f"the page does not show {missing}"


@COMMAND_PAGES
def test_demo_is_shown_with_its_options(page: Path) -> None:
    demo = importlib.import_module("penstock.cli.demo").demo
    known = {option for parameter in demo.params for option in parameter.opts}
    line = re.search(r"^penstock demo .*$", text_of(page), re.M)
    assert line
    assert set(re.findall(r"--[a-z-]+", line[0])) == known


def test_every_command_is_in_the_documents() -> None:
    """Also the sizes, which every command of `penstock store` takes."""
    page = text_of(DOCS / "operating" / "store.md")
    store = importlib.import_module("penstock.cli.store").store
    for name, command in store.commands.items():
        assert f"penstock store {name} " in page
        for parameter in command.params:
            options = [option for option in parameter.opts if option.startswith("--")]
            assert [option for option in options if option not in page] == []


def test_exit_codes_in_the_documents() -> None:
    main = importlib.import_module("penstock.cli.main")
    said = str(main.__doc__).partition("exit codes")[2]
    codes = re.findall(r"(?<!\d)(\d+) [a-z]", said)
    assert codes == ["0", "1", "2", str(main.EXIT_INTERRUPTED), str(main.EXIT_PIPE_CLOSED)]
    readme = text_of(ROOT / "README.md").partition("Exit codes:")[2].partition("\n\n")[0]
    assert re.findall(r"(?<!\d)(\d+) [a-z]", readme) == codes
    table = text_of(DOCS / "operating" / "store.md").partition("| exit status |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([\d, ]+) \|", table, re.M)
    assert [code for row in rows for code in row.split(", ")] == codes


def test_testing_page_names_the_folders_there_are() -> None:
    section = text_of(DOCS / "testing.md").partition("## Folders")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `tests/(\w+)/.*?` \|.*\| (both|compiled) \|$", section, re.M))
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("*/test_*.py")}
    assert set(rows) == folders
    assert {name for name, forms in rows.items() if forms == "both"} == {
        file.split("/")[1] for file in uncompiled.files()
    }


def test_reading_order_leads_to_every_hot_module() -> None:
    page = text_of(DOCS / "reading-order.md")
    names = {path.name for path in (ROOT / "penstock" / "_hot").glob("*.py")} - {"__init__.py"}
    assert [name for name in sorted(names) if not re.search(rf"[`/]{name}`", page)] == []
