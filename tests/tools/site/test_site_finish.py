"""Changes to the generator's pages: copyable commands, tables that fit a phone."""

from __future__ import annotations

import re

import pytest

from tools.site.finish import commands_of, finish_page, phone_layout

BLOCK = '<div class="highlight"><pre><span></span><code>{}</code></pre></div>'


@pytest.mark.parametrize(
    ("shown", "copied"),
    [
        ("$ make demo\n", "make demo"),
        ("$ frog runs\ndemo  600 steps\n$ frog report demo\nreport: x\n", "frog runs\nfrog report demo"),
        ("$ frog run \\\n    --nproc 2 \\\n    -- train\ndone\n", "frog run \\\n    --nproc 2 \\\n    -- train"),
        (">>> 1 + 1\n2\n", ""),
    ],
)
def test_commands_are_extracted_without_prompts_and_output(shown: str, copied: str) -> None:
    assert commands_of(shown) == copied


def test_console_block_contains_the_text_to_copy() -> None:
    page = finish_page(BLOCK.format('<span class="gp">$ </span>frog<span class="w"> </span>a &amp;&amp; b "c"\nsaid\n'))
    assert 'data-copy="frog a &amp;&amp; b &quot;c&quot;"' in page
    assert "data-wrap" not in page, "output keeps its columns"


def test_only_blocks_without_output_wrap() -> None:
    assert ' data-copy="a&#10;b" data-wrap>' in finish_page(BLOCK.format("$ a\n$ b\n"))
    assert finish_page(BLOCK.format("print(1)\n")) == BLOCK.format("print(1)\n")
    two = BLOCK.format("print(1)\n") + BLOCK.format("$ a\n")
    assert finish_page(two).index("data-copy") > two.index("print(1)")


@pytest.mark.parametrize(
    ("rows", "layout"),
    [
        ([["a", "b"], ["1", "2"]], "fit"),
        ([["command", "does"], ["frog docs", "this documentation as a site with search"]], "fit"),
        ([["--set SECTION.FIELD=VALUE --and-more", "overrides one field of the run file"]], "stack"),
        (
            [["name", "meaning", "where"], ["barrier", "no rank continues before all have arrived", "docs/learn.md"]],
            "stack",
        ),
        (
            [["size", "gloo", "frog", "textbook", "measured"], ["4 KiB", "12.3 ms", "12.4 ms", "12.1 ms", "12.2 ms"]],
            "scroll",
        ),
    ],
)
def test_wide_tables_stack_prose_and_scroll_numbers_on_phones(rows: list[list[str]], layout: str) -> None:
    assert phone_layout(rows) == layout


def test_every_table_cell_names_its_column() -> None:
    head, row = "<tr>\n<th>a</th>\n<th>b &amp; c</th>\n</tr>", "<tr>\n<td>1</td>\n<td></td>\n</tr>"
    table = f"<table>\n<thead>\n{head}\n</thead>\n<tbody>\n{row}\n</tbody>\n</table>"
    assert re.findall(r'<td data-label="([^"]*)"', finish_page(table)) == ["a", "b &amp; c"]
