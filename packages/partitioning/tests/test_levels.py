"""Levels against exhaustive search on small random graphs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from torchkiln_partitioning.levels import Dependencies, Kind, assign_levels, best_levels, segment_counts
from torchkiln_partitioning.refine import Transfer, settle

KINDS = st.sampled_from([Kind.ENGINE, Kind.TORCH, Kind.ENGINE, Kind.TORCH, Kind.FREE])


@st.composite
def graphs(draw, most=8):
    graph = Dependencies()
    for vertex in range(draw(st.integers(0, most))):
        before = draw(st.lists(st.integers(0, vertex - 1), max_size=3)) if vertex else []
        graph.add(draw(KINDS), before)
    return graph


def successors(graph):
    result = [[] for _ in graph.kinds]
    for vertex, before in enumerate(graph.predecessors):
        for other in before:
            result[other].append(vertex)
    return result


@st.composite
def graphs_with_transfers(draw):
    graph = draw(graphs(most=12))
    readers = successors(graph)
    transfers = []
    for vertex, kind in enumerate(graph.kinds):
        consumers = tuple(other for other in readers[vertex] if graph.kinds[other] is not Kind.FREE)
        if kind is not Kind.FREE and consumers:
            transfers.append(Transfer(draw(st.integers(1, 100)), vertex, consumers))
    calls = [vertex for vertex, kind in enumerate(graph.kinds) if kind is not Kind.FREE]
    for _ in range(draw(st.integers(0, 3)) if calls else 0):
        transfers.append(Transfer(draw(st.integers(1, 100)), None, tuple(draw(st.sets(st.sampled_from(calls), min_size=1)))))
    return graph, transfers


def check_valid(graph, levels):
    by_level = {}
    for vertex, before in enumerate(graph.predecessors):
        assert all(levels[other] <= levels[vertex] for other in before)
        if graph.kinds[vertex] is not Kind.FREE:
            assert by_level.setdefault(levels[vertex], graph.kinds[vertex]) is graph.kinds[vertex]


def crossing_bytes(transfers, levels):
    """Bytes that cross borders: each tensor counts once per segment that reads it and does not make it."""
    total = 0
    for transfer in transfers:
        readers = {levels[consumer] for consumer in transfer.consumers}
        if transfer.producer is not None:
            readers.discard(levels[transfer.producer])
        total += transfer.num_bytes * len(readers)
    return total


@settings(deadline=None, max_examples=300)
@given(graph=graphs())
def test_no_division_has_fewer_segments(fewest, graph):
    levels = best_levels(graph)
    check_valid(graph, levels)
    assert segment_counts(graph, levels)[0] == fewest(graph)


@settings(deadline=None, max_examples=100)
@given(graphs(), st.sampled_from([Kind.ENGINE, Kind.TORCH]))
def test_levels_alternate_from_the_first_kind(graph, first):
    levels = assign_levels(graph, first)
    check_valid(graph, levels)
    for kind, level in zip(graph.kinds, levels, strict=True):
        assert kind is Kind.FREE or (level % 2 == 0) == (kind is first)


@settings(deadline=None, max_examples=300)
@given(graphs_with_transfers())
def test_moves_keep_the_count_and_never_add_bytes(drawn):
    graph, transfers = drawn
    before = best_levels(graph)
    after = settle(graph, transfers, before)
    check_valid(graph, after)
    assert segment_counts(graph, after) == segment_counts(graph, before)
    assert crossing_bytes(transfers, after) <= crossing_bytes(transfers, before)


def test_tie_prefers_fewer_engines():
    graph = Dependencies()
    graph.add(Kind.ENGINE, [])
    graph.add(Kind.TORCH, [0])
    graph.add(Kind.TORCH, [])
    graph.add(Kind.ENGINE, [2])
    engine_first = assign_levels(graph, Kind.ENGINE)
    assert segment_counts(graph, engine_first) == (3, 2)
    assert segment_counts(graph, best_levels(graph)) == (3, 1)


def test_move_pulls_a_reducing_call_to_its_producer():
    graph = Dependencies()
    torch_maker = graph.add(Kind.TORCH, [])
    engine = graph.add(Kind.ENGINE, [torch_maker])
    shrink = graph.add(Kind.TORCH, [])
    last = graph.add(Kind.TORCH, [engine, shrink])
    transfers = [Transfer(1, shrink, (last,))]
    levels = best_levels(graph)
    assert levels[shrink] != levels[last]
    settled = settle(graph, transfers, levels)
    assert settled[shrink] == settled[last]
    assert crossing_bytes(transfers, settled) == 0


def test_ten_thousand_vertices_in_a_chain():
    graph = Dependencies()
    for vertex in range(10_000):
        graph.add(Kind.ENGINE if vertex % 2 else Kind.TORCH, [vertex - 1] if vertex else [])
    assert segment_counts(graph, settle(graph, [], best_levels(graph)))[0] == 10_000
