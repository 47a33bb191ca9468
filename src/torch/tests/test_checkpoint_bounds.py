"""`rendez.torch.checkpoint`: how much is asked for at once, and what a file of weights cannot hold."""

from test_checkpoint import script


def test_parts_are_asked_for_within_the_window(world):
    world.run(
        script("""
        from rendez.torch.checkpoint import _words
        rows, keys = 1 << 17, [str(n) for n in range(8)]
        if rank == 0:
            writer = RendezWriter("parts")
            state = {key: torch.full((rows,), float(key), dtype=torch.float64) for key in keys}
            dcp.save(state, storage_writer=writer)
            tell("place", writer.place)
            for other in (1, 2):
                told(f"loaded {other}")
        else:
            join("load", [1, 2])
            mesh = init_device_mesh("cpu", (2,))
            asked, call = [], _words.call

            def seen(engine, task, method, said, patience):
                if method == _words.FETCH and said["items"] != "metadata":
                    asked.append(said["items"])
                return call(engine, task, method, said, patience)

            _words.call, _words.WINDOW = seen, 1 << 20
            empty = lambda: distribute_tensor(torch.zeros(rows, dtype=torch.float64), mesh, [Shard(0)])
            state = {key: empty() for key in keys}
            dcp.load(state, storage_reader=RendezReader(told("place")))
            for key, value in state.items():
                assert torch.equal(value.to_local(), torch.full((rows // 2,), float(key), dtype=torch.float64)), key
            # Half of each is read: two of these fill the window.
            sizes = [sum(lengths[0] * 8 for _, _, lengths in items) for items in asked]
            assert sizes == [_words.WINDOW] * 4, sizes
            tell(f"loaded {rank}")
        """),
        size=3,
        group=False,
        RENDEZ_REQUIRE="tcp",
        RENDEZ_LISTEN="127.0.0.1:0",
    )


def test_who_pulls_is_told_why_there_is_no_file(world):
    """A type that files have no name for, an error that is none of rendez', and what comes after them."""
    world.run(
        script("""
        from rendez.torch.checkpoint import _pieces
        if rank == 1:
            writer = RendezWriter()
            dcp.save({"z": torch.ones(3, dtype=torch.complex128)}, storage_writer=writer)
            tell("place", writer.place)
            told("first")
            header_of = _pieces.header_of

            def odd(*_):
                raise ValueError("odd")

            _pieces.header_of = odd
            dcp.save({"w": torch.ones(3)}, storage_writer=writer)
            tell("odd")
            told("second")
            _pieces.header_of = header_of
            tell("even")
            told("third")
            tell("over")
        else:
            holder = Holder()
            task = Place.parse(told("place")).told(holder.engine)

            def refused():
                try:
                    holder.pull(task, patience=30)
                except rendez.RendezError as error:
                    assert holder._saves == {} and task in str(error), error
                    return error
                raise SystemExit("it was taken")

            error = refused()
            assert error.reason == "CHECKPOINT_UNSUPPORTED" and "complex128" in str(error), error
            tell("first")
            told("odd")
            error = refused()
            assert isinstance(error, rendez.Unknown) and "ValueError: odd" in str(error), error
            tell("second")
            told("even")
            holder.pull(task, patience=30)
            assert len(holder.checkpoints) == 1
            tell("third")
            # The store is in this process.
            told("over")
        """),
        size=2,
        group=False,
    )
