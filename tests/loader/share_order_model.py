"""A model of the order by shares: loops over rows, from the docstrings of its modules alone."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate, pairwise
from math import floor, isqrt
from statistics import median
from typing import NamedTuple

import numpy as np

from seqrecord.loader.sampling.cursor_shares import GOLDEN, coprime_part
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of, permutation, uniform
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.share_orders import EpochKey
from seqrecord.loader.sampling.share_settings import ShareSettings


class Row(NamedTuple):
    owner: int
    episode: int
    start: int
    sample: int


class Units(NamedTuple):
    num_frames: list[int]
    offset: int  # of a row's first frame
    nbytes: int
    begins: list[list[int]]  # of each episode's units; empty if frames decode alone
    unit_frames: int  # 0 if units have several lengths

    def of_row(self, row: Row) -> int:
        frame = min(max(row.start + self.offset, 0), self.num_frames[row.episode] - 1)
        return bisect_right(self.begins[row.episode], frame)

    def cost(self) -> int:
        ends = ([*b, n] for b, n in zip(self.begins, self.num_frames, strict=True))
        longest = (max(j - i for i, j in pairwise(episode_ends)) for episode_ends in ends)
        return self.nbytes * (self.unit_frames or int(median(longest)))


class Epoch(NamedTuple):
    rows: list[Row]
    costs: list[int]
    units: list[Units]
    settings: ShareSettings
    key: EpochKey
    num_shards: int
    size: int  # of a batch
    kind: str  # shuffled, unshuffled or sequences


def rows_of(table: RowTable) -> list[Row]:
    names = "owner", "episode", "start", "sample", "count"
    runs = zip(*(getattr(table, name).tolist() for name in names), strict=True)
    a, b = table.stride, table.sample_step
    return [Row(o, e, f + i * a, s + i * b) for o, e, f, s, n in runs for i in range(n)]


def rows_of_shards(total: int, num: int) -> list[int]:
    edges = [s * (total % num) // num for s in range(num + 1)]
    return [total // num + j - i for i, j in pairwise(edges)]


def rows_left(rows: list[Row], emitted: set[int]) -> list[Row]:
    left = [row for number, row in enumerate(rows) if number not in emitted]
    owners = sorted({row.owner for row in left})
    return [row._replace(owner=owners.index(row.owner)) for row in left]


def hashes(key: int, numbers: list[int] | range) -> list[int]:
    return [int(number) for number in hash64(key, np.array(numbers))]


def circle_of(epoch: Epoch, key: int) -> tuple[list[int], list[int]]:
    drawn = hashes(key_of(Purpose.EPISODE_ORDER, key), [row.owner for row in epoch.rows])
    rows = sorted(range(len(drawn)), key=drawn.__getitem__) * 2
    return rows, [0, *accumulate(epoch.costs[number] for number in rows)]


def nearest_row(before: list[int], cost: int) -> int:
    place = bisect_right(before, cost) - 1
    return place + (before[place + 1] - cost < cost - before[place])


def begins_of_shares(epoch: Epoch, circle: list[int], before: list[int], key: int) -> list[int]:
    owners = [epoch.rows[number].owner for number in circle[: len(epoch.rows)]]

    def place_and_episode(cost: Fraction | int) -> tuple[int, int, int]:
        place = bisect_right(before, cost) - 1
        first = owners.index(owners[place])
        return place, first, first + owners.count(owners[place])

    total, num = sum(epoch.costs), epoch.num_shards * epoch.settings.num_cursors
    drawn = float(uniform(key_of(Purpose.SHARE_BEGINS, key), np.array([0]))[0])
    at = [(k + Fraction(drawn)) * total / num for k in range(num)]
    bounds = [[before[place] for place in place_and_episode(cost)[1:]] for cost in at]
    phases = [(cost - i) / (j - i) for cost, (i, j) in zip(at, bounds, strict=True)]
    places = [(round(phases[k] * 2**20), min(2 * k, 2 * (num - k) - 1)) for k in range(num)]
    half, moves = Fraction(1, 2), dict[int, Fraction]()
    for i, k in enumerate(sorted(range(num), key=places.__getitem__)):
        moves[k] = ((i + half) / num - phases[k] + half) % 1 - half
    middle, most = median(moves.values()), Fraction(49, 100) * total / num
    leading, begins = max(epoch.units, key=Units.cost), list[int]()
    for k, (i, j) in enumerate(bounds):
        move = ((moves[k] - middle + half) % 1 - half) * (j - i)
        begin = floor(at[k] + min(max(move, -most), most)) % total
        place, first, last = place_and_episode(begin)
        moves_on = (k * GOLDEN + drawn) % 1 < epoch.settings.aligned
        if leading.begins and moves_on and (k < num - epoch.num_shards or epoch.num_shards == 1):
            units = [leading.of_row(epoch.rows[number]) for number in circle[first:last]]
            low, length = first + units.index(u := units[place - first]), units.count(u)
            place = low if 2 * (place - low) <= length else low + length
        else:
            place = nearest_row(before, begin)
        begins.append(before[place] % total)
    return sorted(begins)


def rows_of_cursors(epoch: Epoch, key: int) -> list[list[list[int]]]:
    (circle, before), total = circle_of(epoch, key), sum(epoch.costs)
    size, count = epoch.num_shards, epoch.settings.num_cursors
    begins, shards, num = begins_of_shares(epoch, circle, before, key), range(size), size * count
    lengths = [end - begin for begin, end in pairwise([*begins, begins[0] + total])]
    shard_of, num_cut = [(k + k // size * epoch.settings.rotation) % size for k in range(num)], 1

    def lacks(turn: int) -> list[int]:
        had = [sum(lengths[k] for k in range(turn * size) if shard_of[k] == s) for s in shards]
        return [rows - had[s] for s, rows in enumerate(rows_of_shards(total, size))]

    if min(lacks(count - 1)) < 1:
        drawn = hashes(key_of(Purpose.SHARE_SHARDS, key), range(num))
        for turn in range(count):
            of_turn, lack = range(num)[turn * size :][:size], lacks(turn)
            longest = sorted(of_turn, key=lambda k: (-lengths[k], drawn[k]))
            for k, shard in zip(longest, sorted(shards, key=lambda s: -lack[s]), strict=True):
                shard_of[k] = shard
        while min(lacks(count - num_cut)) < (num_cut if total >= num else 0):
            num_cut += 1
    lack = lacks(count - num_cut)
    for k in range(num)[(count - num_cut) * size :]:
        part, rows = k // size - count + num_cut, lack[shard_of[k]]
        lengths[k] = (part + 1) * rows // num_cut - part * rows // num_cut
    edges = [nearest_row(before, end) for end in accumulate(lengths, initial=begins[0])]
    shares = [circle[i:j] for i, j in pairwise(edges)]
    return [[share for k, share in enumerate(shares) if shard_of[k] == s] for s in shards]


def rows_of_rounds(cursors: list[list[int]], epoch: Epoch, key: int) -> list[int]:
    count, longest = epoch.settings.num_cursors, epoch.settings.round_rows
    parts = 1 / GOLDEN if count >= epoch.size else -(-epoch.size // count) + 1.0
    edge, rows = 0, min(2 * epoch.size, longest) if count >= epoch.size else longest
    cursors = cursors[: max((c + 1 for c, share in enumerate(cursors) if share), default=0)]
    total, size, emitted = sum(map(len, cursors)), len(cursors), list[int]()
    numbers = permutation(key_of(Purpose.CURSOR_BEGINS, key), size).tolist()
    drawn, blocks = [(2 * i + 1) * total // (2 * size) for i in numbers], range(size)
    while edge < total:
        stop, places = min(edge + rows, total), list[tuple[int, int, int, int]]()
        order = hashes(key_of(Purpose.CURSOR_PLACES, key), blocks)
        shifts = hashes(key_of(Purpose.BLOCK_SHIFTS, key), blocks)
        for c, (share, d) in enumerate(zip(cursors, drawn, strict=True)):
            block = share[(edge * len(share) + d) // total : (stop * len(share) + d) // total]
            rank, s = sorted(order).index(order[c]), len(block)
            for k in range(s):
                place = floor((k + Fraction(2 * rank + 1, 2 * size)) / s * 2**36)
                row = block[(coprime_part(s, parts) * k + shifts[c]) % s]
                places.append((place, c, k, row))
        emitted += [row for *_, row in sorted(places)]
        edge, rows, blocks = stop, min(2 * rows, longest), range(blocks.stop, blocks.stop + size)
    return emitted


def permute(number: int, length: int, key: int) -> int:
    b = -(-length // (a := isqrt(length - 1) + 1))
    x, y = divmod(number, b)
    for step in range(6):  # of one digit, then of the other one
        drawn = hashes(key_of(Purpose.ROW_ORDER, key, step), [y])[0] >> 32
        x, y, a, b = y, (x + (a * drawn >> 32)) % a, b, a
    return x * b + y if x * b + y < length else permute(x * b + y, length, key)


def batches_of_shards(epoch: Epoch) -> list[list[list[int]]]:
    settings, num, size, total = epoch.settings, epoch.num_shards, epoch.size, len(epoch.rows)
    key, shards, orders = key_of(Purpose.SHARES_OF_EPOCH, *epoch.key), range(num), list[list[int]]()
    if epoch.kind != "shuffled":
        rows, width = list(range(total)), 1
        if epoch.kind == "sequences":
            rows, width = circle_of(epoch, key)[0], size
        counts = rows_of_shards(total, num)
        lengths = [n // width + (c < n % width) for c in range(width) for n in counts]
        parts = [rows[i:j] for i, j in pairwise(accumulate(lengths, initial=0))]
        orders = [[x[b] for b in range(total) for x in parts[s::num] if b < len(x)] for s in shards]
    elif settings.is_permuted:
        firsts = sorted(shards, key=lambda s: -rows_of_shards(total, num)[s])
        starts = [firsts.index(s) for s in shards]
        orders = [[permute(i, total, key) for i in range(s, total, num)] for s in starts]
    else:
        old = key_of(Purpose.SHARES_OF_EPOCH, *epoch.key._replace(epoch=0))
        for s, cursors in enumerate(rows_of_cursors(epoch, old if settings.is_resident else key)):
            shard_key = key_of(Purpose.SHARES_OF_EPOCH, *epoch.key, s)
            orders.append(rows_of_rounds(cursors, epoch, shard_key))
            if settings.is_resident and epoch.key.epoch:
                rows = [row for share in cursors for row in share]
                orders[s] = [rows[permute(i, len(rows), shard_key)] for i in range(len(rows))]
    return [[order[i : i + size] for i in range(0, len(order), size)] for order in orders]
