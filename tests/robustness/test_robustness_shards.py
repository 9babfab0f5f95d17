"""Shards of a run of attacks: each row is in one shard, and a merge equals the whole run or is refused."""

from dataclasses import replace

import pytest
from robustness_helpers import drop_last_line
from toy_attack import SETTINGS, copy_run, run, run_bytes, run_shards, toy_attack, toy_rows

from alignattn.robustness.loop import AttackJob, attack_rows, merge
from alignattn.robustness.records import read_run
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.shard import Shard

pytest_plugins = ["robustness_fixtures"]


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3", "1/2/3", ""])
def test_an_invalid_shard_is_refused(text):
    with pytest.raises(AlignAttnError, match="shard"):
        Shard.parse(text)


def test_shards_deal_each_row_once():
    dealt = [Shard.parse(f"{number}/3").deal(list(range(8))) for number in (1, 2, 3)]
    assert dealt == [[0, 3, 6], [1, 4, 7], [2, 5]]


@pytest.mark.parametrize("count", [2, 3])
def test_merged_shards_equal_one_run(whole, tiny_checkpoint, tmp_path, count):
    parts = run_shards(tiny_checkpoint, tmp_path, count)
    for number, part in enumerate(parts, 1):
        assert [record.index % count for record in part.records] == [number - 1] * len(part.records)
    out = tmp_path / "merged.jsonl"
    assert merge([part.path for part in parts[::-1]], out).records == whole.records
    assert run_bytes(out) == run_bytes(whole.path)


def test_a_killed_merge_is_repeated_and_a_finished_one_is_not_changed(whole, tiny_checkpoint, tmp_path):
    paths = [part.path for part in run_shards(tiny_checkpoint, tmp_path, 2)]
    out = copy_run(whole, tmp_path)
    out.unlink()  # the header is written first
    for _ in range(2):
        assert merge(paths, out).records == whole.records
        assert run_bytes(out) == run_bytes(whole.path)
    drop_last_line(out)
    with pytest.raises(AlignAttnError, match="differs from the merged shards"):
        merge(paths, out)


def test_records_of_other_rows_than_the_headers_are_refused(whole, tiny_checkpoint, tmp_path):
    one, two = (part.path for part in run_shards(tiny_checkpoint, tmp_path, 2))
    two.write_bytes(one.read_bytes())
    with pytest.raises(AlignAttnError, match=r"2.jsonl, line 1 belongs to toy on row 0 .* not to toy on row 1"):
        merge([one, two], tmp_path / "out.jsonl")
    lines = whole.path.read_bytes().splitlines(keepends=True)
    with pytest.raises(AlignAttnError, match="line 2 belongs to toy on row 0"):
        read_run(copy_run(whole, tmp_path, b"".join([lines[0], *lines])))
    with pytest.raises(AlignAttnError, match=f"has {len(lines) + 1} records for {len(lines)} rows"):
        read_run(copy_run(whole, tmp_path, b"".join([*lines, lines[-1]])))


def test_shards_that_do_not_belong_together_are_not_merged(tiny_checkpoint, tmp_path):
    one, two, other, out = (tmp_path / f"{name}.jsonl" for name in ("one", "two", "other", "out"))
    run(tiny_checkpoint, one, Shard(1, 2))
    run(tiny_checkpoint, two, Shard(2, 2))
    run(tiny_checkpoint, other, Shard(2, 2), replace(SETTINGS, resources={"words": "ten"}))
    with pytest.raises(AlignAttnError, match=r"different runs: resources .*ten.*twenty"):
        merge([one, other], out)
    with pytest.raises(AlignAttnError, match=r"out\.jsonl needs each of 2 shards once, and there are 1/2"):
        merge([one], out)
    with pytest.raises(AlignAttnError, match=r"there are 1/2, 1/2"):
        merge([one, one], out)
    with pytest.raises(AlignAttnError, match=r"one.jsonl exists and differs from the merged shards"):
        merge([one, two], one)
    two.write_bytes(two.read_bytes()[:-1])
    with pytest.raises(AlignAttnError, match="shard 2/2: run its command again"):
        merge([one, two], out)
    with pytest.raises(AlignAttnError, match="nothing to merge"):
        merge([], out)
    assert not out.exists()


def test_rows_after_unusable_ones_keep_their_numbers(tiny_checkpoint, tmp_path):
    attack = toy_attack(tiny_checkpoint)
    rows = [row for row in toy_rows(attack) if row.index not in (0, 4)]
    settings = replace(SETTINGS, num_examples=1000)
    parts = []
    for number in (1, 2):
        path = tmp_path / f"{number}.jsonl"
        parts.append(attack_rows(attack, AttackJob(rows, path, settings, shard=Shard(number, 2), left_out=(0, 4))))
    records = merge([part.path for part in parts], tmp_path / "whole.jsonl").records
    assert [record.index for record in records] == [row.index for row in rows]
    assert [record.seed for record in records] == [SETTINGS.seed + row.index for row in rows]
