"""The plans of the benchmarks contain exactly the measurements that they promise."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.load.plan import CONTENDERS, PLANS, SHAPES, Cell, Group, full_plan, narrowed, quick_plan, smoke_plan

BY_NAME = {contender.name: contender for contender in CONTENDERS}


def test_the_full_plan_has_every_dimension() -> None:
    plan = full_plan()
    closed = {(cell.in_flight, cell.connections) for cell in plan.cells if cell.work == "put" and cell.in_flight}

    assert plan.repetitions >= 3
    assert set(SHAPES) <= closed
    assert {cell.work for cell in plan.cells} == {"put", "get", "mixed"}
    assert {16, 128, 65_536} <= {cell.group.value_bytes for cell in plan.cells}
    assert {100_000, 1_000_000} <= {cell.group.existing_keys for cell in plan.cells}
    assert {1, 3, 5, 7} <= {cell.group.members for cell in plan.cells}
    assert any(cell.rate for cell in plan.cells)


@pytest.mark.parametrize("name", PLANS)
def test_no_two_cells_of_a_plan_would_have_the_same_rows(name: str) -> None:
    cells = PLANS[name]().cells
    assert len({(cell.label, cell.group, cell.in_flight, cell.rate) for cell in cells}) == len(cells)


@pytest.mark.parametrize("name", PLANS)
def test_every_number_in_flight_is_shared_out_evenly_over_its_connections(name: str) -> None:
    assert all(cell.in_flight % cell.connections == 0 for cell in PLANS[name]().cells)


def test_cells_of_one_group_are_neighbours_so_that_one_cluster_serves_them() -> None:
    groups = [cell.group for cell in full_plan().cells]
    changes = 1 + sum(before != after for before, after in itertools.pairwise(groups))
    assert changes == len(set(groups))


def test_options_leave_only_what_they_name() -> None:
    plan = narrowed(full_plan(), works=["put"], in_flight=[64])

    assert plan.cells == (Cell(Group(), "put", 64, 8),)
    assert plan.repetitions == full_plan().repetitions


def test_an_option_of_one_dimension_keeps_the_levels_of_the_others() -> None:
    plan = narrowed(quick_plan(), value_bytes=[1_024])

    assert {cell.work for cell in plan.cells} == {"put", "get"}
    assert {cell.in_flight for cell in plan.cells} == {1, 64, 1024}
    assert {cell.group.value_bytes for cell in plan.cells} == {1_024}


def test_a_rate_alone_makes_only_open_loops() -> None:
    plan = narrowed(smoke_plan(), rates=[700])

    assert [(cell.rate, cell.in_flight) for cell in plan.cells] == [(700, 0)]


def test_a_number_in_flight_that_does_not_divide_is_kept_exactly() -> None:
    [cell] = narrowed(full_plan(), works=["put"], in_flight=[36]).cells

    assert (cell.in_flight, cell.connections) == (36, 4)


def test_pysyncobj_is_never_asked_for_reads_that_it_cannot_give() -> None:
    """PySyncObj reads from local memory and has no linearizable reads."""
    assert BY_NAME["pysyncobj"].takes_part(Cell(Group(), "put", 1, 1))
    assert not BY_NAME["pysyncobj"].takes_part(Cell(Group(), "get", 1, 1))
    assert not BY_NAME["pysyncobj-tuned"].takes_part(Cell(Group(), "mixed", 1, 1))


def test_work_at_a_rate_or_over_many_keys_has_a_name_of_its_own() -> None:
    """A reader may group rows by work and number in flight. Such a group must not mix different measurements."""
    assert Cell(Group(), "put", 64, 8).label == "put"
    assert Cell(Group(), "put", 0, 16, rate=500).label == "put_at_rate"
    assert Cell(Group(existing_keys=1_000_000), "get", 64, 8).label == "get_1000000_keys"
