"""Documentation is followed as a reader would, and fails where the reader would."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from tests.support.markdown import read_blocks
from tests.support.processes import Process

ROOT = Path(__file__).resolve().parents[2]

PAGE = """\
# Page

```python
from __future__ import annotations
from pydantic import BaseModel

class Order(BaseModel):
    number: Number

Number = int
```

1. In a list:

   ```bash
   SESSION="two words"
   mkdir made && cd made
   echo "http://127.0.0.1:8000" > address
   sleep 600 &
   ```

```python
assert Order(number=3).number == 3
print(open("made/address").read())
```

```sh
test "$SESSION" = "two words" && cat address
```

```python file=shop.py
ITEMS = ["pen"]
```

```python
import shop
print(shop.ITEMS)
```

```bash no-run: it would end the world
exit 1
```

```json
{"fine": true}
```
"""


def follow(page: Path) -> Process:
    folder = page.parent / "reader"
    folder.mkdir()
    command = [sys.executable, "-m", "tests.support.markdown", str(page), "127.0.0.1:9999"]
    with Process(command, folder=folder, env={"PYTHONPATH": str(ROOT)}) as reader:
        reader.wait()
    return reader


def write_page(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_blocks_share_folder_session_and_shell(tmp_path: Path) -> None:
    page = write_page(tmp_path, PAGE)
    for block in read_blocks(page):
        block.check()
    reader = follow(page)
    assert reader.returncode == 0, reader.output()
    assert reader.output().split() == ["http://127.0.0.1:9999", "http://127.0.0.1:9999", "['pen']"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# Page\n\n```python\nfine = 1\n1 / 0\n```\n", 'page.md", line 5'),
        ("# Page\n\n```bash\ntrue\nno-such-command\n```\n", "line 5: no-such-command"),
        ("# Page\n\n```bash\nfalse | true\n```\n", "page.md:4: exit code 1"),
        ("# Page\n\n```bash\necho $UNSET\n```\n", "UNSET: unbound variable"),
    ],
)
def test_failing_block_names_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    reader = follow(write_page(tmp_path, text))
    assert reader.returncode not in (0, None)
    assert said in reader.output()


@pytest.mark.parametrize(
    "text",
    [
        "```json\n{broken}\n```\n",
        "```jsonl\n{}\n{broken}\n```\n",
        "```toml\na = \n```\n",
        "```yaml\na: [\n```\n",
        "```bash no-run\nrm -rf /\n```\n",
        "```bash no-run:\nrm -rf /\n```\n",
        "```ruby\nputs 1\n```\n",
        "```\nwhat is this\n```\n",
    ],
)
def test_unchecked_block_is_refused(tmp_path: Path, text: str) -> None:
    (block,) = read_blocks(write_page(tmp_path, text))
    with pytest.raises((ValueError, yaml.YAMLError)):
        block.check()
