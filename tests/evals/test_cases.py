"""Files of cases: what is read, and what is refused by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmkeep.evals.cases import InvalidCases, Say, load_cases
from swarmkeep_agents import TEAMS

AGENTS = Path(__file__).resolve().parents[2] / "agents" / "swarmkeep_agents"

GOOD = """
agents: shop.py
cases:
  - name: first
    conversation: [Hello, {say: "Buy it on 2031-06-01.", expect: {function: buy}}]
    context_variables: {day: 2031-06-01, yes: true, no: off, at: 12:30}
    expect: {agent: Sales, text: [bought, "/for \\\\d+/"]}
"""


def write_cases(folder: Path, text: str, name: str = "cases.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_case_is_read_as_written(tmp_path: Path) -> None:
    (found,) = load_cases([write_cases(tmp_path, GOOD)])
    (case,) = found.cases
    assert found.agents == "shop.py"
    assert [message.say for message in case.messages] == ["Hello", "Buy it on 2031-06-01."]
    assert isinstance(case.conversation[1], Say)
    # A date, a time, and a word that old YAML takes for a boolean, are the text that they are in JSON.
    assert case.context_variables == {"day": "2031-06-01", "yes": True, "no": "off", "at": "12:30"}
    assert not case.is_judged


def test_json_is_read_alike(tmp_path: Path) -> None:
    text = '{\n\t"cases": [\n\t\t{"name": "one", "conversation": ["Hi"], "expect": {"agent": "Ann"}}\n\t]\n}'
    (found,) = load_cases([write_cases(tmp_path, text, "cases.json")])
    assert found.cases[0].expect.agent == "Ann"


def test_a_folder_is_searched(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    write_cases(tmp_path / "deep", GOOD)
    write_cases(tmp_path, GOOD, "more.yml")
    write_cases(tmp_path, "nothing", "notes.txt")
    assert len(load_cases([tmp_path])) == 2


def test_unrelated_project_files_are_left_out(tmp_path: Path) -> None:
    cases = write_cases(tmp_path, GOOD)
    others = [write_cases(tmp_path, "[]", "conversations.json"), write_cases(tmp_path, "version: 3\n", "deploy.yml")]
    (tmp_path / ".venv").mkdir()
    write_cases(tmp_path / ".venv", "cases: [\n")
    skipped: list[Path] = []
    assert [file.path for file in load_cases([tmp_path], on_skip=skipped.append)] == [str(cases)]
    assert skipped == others
    # One that is named is meant to hold some.
    with pytest.raises(InvalidCases, match="Expected `object`, got `array`"):
        load_cases(others[:1])


def test_mistakes_in_found_files_are_reported(tmp_path: Path) -> None:
    write_cases(tmp_path, GOOD)
    write_cases(tmp_path, "cases:\n  - name: [one\n", "more.yml")
    with pytest.raises(InvalidCases, match="it is not YAML"):
        load_cases([tmp_path])


CASE = "cases:\n  - name: one\n    conversation: [Hi]\n    expect: {agent: Ann}\n"
BAD = {
    "syntax": ("cases:\n  - name: [one\n", ", line 3: it is not YAML"),
    "no mapping": ("- one\n", ", line 1: Expected `object`"),
    "no cases": ("agents: shop.py\n", ", line 1: Object missing required field `cases`"),
    "empty": ("cases: []\n", "there are no cases in"),
    "unknown key": (
        CASE + "    expects: {}\n",
        ", line 2, /cases/0: Object contains unknown field `expects`",
    ),
    "wrong type": (CASE + "    approve: maybe\n", ", line 5, /cases/0/approve: Expected `bool`, got `str`"),
    "unknown need": (CASE + "    needs: luck\n", ", line 5, /cases/0/needs: Invalid enum value 'luck'"),
    "wrong type deep inside": (
        "cases:\n  - name: one\n    conversation:\n      - Hi\n      - say: Ho\n        expect: {agent: 3}\n",
        ", line 6, /cases/0/conversation/",
    ),
    "name twice": (CASE + CASE.removeprefix("cases:\n"), ", line 5, /cases/1/name: another case has the name 'one'"),
    "both": (CASE + "    recorded: a\n", "either a conversation or the id"),
    "neither": ("cases:\n  - name: one\n    expect: {agent: Ann}\n", "either a conversation or the id"),
    "nothing expected": (
        "cases:\n  - name: one\n    conversation: [Hi]\n",
        ", line 2, /cases/0: the case expects nothing",
    ),
    "bad expression": (
        "cases:\n  - name: one\n    conversation: [Hi]\n    expect:\n      text: /(/\n",
        ", line 5, /cases/0/expect/text: '/(/' is not a valid regular expression",
    ),
    "bad expression that must not match": (
        "cases:\n  - name: one\n    conversation: [Hi]\n    expect:\n      text: a\n      no_text: [b, /(/]\n",
        ", line 6, /cases/0/expect/no_text: '/(/' is not a valid regular expression",
    ),
    "arguments of nothing": (
        "cases:\n  - name: one\n    conversation: [Hi]\n    expect:\n      arguments: {a: 1}\n",
        ", line 5, /cases/0/expect/arguments: say which function",
    ),
    "settings made elsewhere": (
        CASE + "    model_settings:\n      tools: []\n",
        ", line 6, /cases/0/model_settings/tools: model_settings cannot set tools",
    ),
    "settings of what is recorded": (
        "cases:\n  - name: one\n    recorded: a\n    model_settings: {seed: 1}\n",
        ", line 4, /cases/0/model_settings: no model is asked",
    ),
    "no turns": (CASE + "    max_turns: 0\n", ", line 5, /cases/0/max_turns: must be at least 1"),
    "unknown kind": (
        "cases:\n  - name: one\n    recorded: a\n    ignore: [moods]\n",
        ", line 4, /cases/0/ignore: unknown kind of difference 'moods'",
    ),
    "key twice": (
        CASE + "    expect: {agent: Bob}\n",
        ", line 5, /cases/0/expect: the key is there twice; the first is in line 4",
    ),
    "key twice deep inside": (
        CASE + "    history:\n      - role: user\n        content: a\n        content: b\n",
        ", line 8, /cases/0/history/0/content: the key is there twice; the first is in line 7",
    ),
    "file's key twice": (CASE + "cases: []\n", ", line 5, /cases: the key is there twice; the first is in line 1"),
    "a tag that would make an object": ("cases: !!python/object/apply:os.getcwd []\n", "it is not YAML"),
}


@pytest.mark.parametrize("name", BAD)
def test_case_errors_name_their_line(name: str, tmp_path: Path) -> None:
    text, said = BAD[name]
    file = write_cases(tmp_path, text)
    with pytest.raises(InvalidCases) as refused:
        load_cases([file])
    assert str(file) in str(refused.value)
    assert said in str(refused.value)


def test_duplicate_json_key_is_refused(tmp_path: Path) -> None:
    text = '{\n\t"cases": [\n\t\t{"name": "one", "conversation": ["Hi"],\n\t\t"name": "two"}\n\t]\n}'
    with pytest.raises(InvalidCases, match=r"cases\.json, line 4, /cases/0/name: the key is there twice"):
        load_cases([write_cases(tmp_path, text, "cases.json")])


def test_merged_keys_may_be_given_again(tmp_path: Path) -> None:
    text = "needs: &n model\ncases:\n  - &one\n    name: one\n    conversation: [Hi]\n    expect: {agent: Ann}\n"
    (found,) = load_cases([write_cases(tmp_path, text + "  - <<: *one\n    name: two\n    needs: *n\n")])
    assert [(case.name, case.needs, case.expect.agent) for case in found.cases] == [
        ("one", None, "Ann"),
        ("two", "model", "Ann"),
    ]


def test_json_fault_is_named_with_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidCases, match=r"cases\.json, line 2: it is not JSON"):
        load_cases([write_cases(tmp_path, '{"cases":\n [}', "cases.json")])


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidCases, match=r"nowhere\.yaml: No such file"):
        load_cases([tmp_path / "nowhere.yaml"])
    with pytest.raises(InvalidCases, match="no file in this folder ends in"):
        load_cases([tmp_path])
    (tmp_path / "latin.yaml").write_bytes(b"cases: \xe9")
    with pytest.raises(InvalidCases, match=r"latin\.yaml: it is not UTF-8"):
        load_cases([tmp_path])


@pytest.mark.parametrize("team", TEAMS)
def test_every_team_has_cases(team: str) -> None:
    files = load_cases([AGENTS / team / "evals"])
    assert {file.agents for file in files} == {TEAMS[team]}
    assert sum(len(file.cases) for file in files) >= 4
