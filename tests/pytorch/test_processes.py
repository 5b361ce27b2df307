"""More than one process, and the end of one: torchrun, DataLoader, fork, spawn, tensors shared or alive at exit."""

import sys
from textwrap import dedent

import pytest
from world import PAGES, PREAMBLE, full_only, not_plug, run_python, run_quickly, succeeds


def write_script(path, code):
    path.write_text(PREAMBLE + dedent(code))
    return path


def test_two_ranks_train_on_two_devices(tmp_path):
    script = write_script(
        tmp_path / "train.py",
        """
        import os
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        model = torch.nn.Linear(512, 512).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(64, 512, device="cuda")).sum().backward()
            for parameter in model.parameters():
                host = parameter.grad.cpu()
                dist.all_reduce(host)
                parameter.grad.copy_(host)
            optimizer.step()
            optimizer.zero_grad()
        mine, other = torch.cuda.memory_allocated(rank), torch.cuda.memory_allocated(1 - rank)
        assert mine >= 512 * 513 * 4 and other == 0, (mine, other)
        dist.barrier()
        dist.destroy_process_group()
        open(f"{os.path.dirname(__file__)}/{rank}.done", "x").close()
        # gloo's threads may still have to let go of tensors, for which PyTorch needs Python: it does not survive its end.
        os._exit(0)
        """,
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    succeeds(run_quickly(command))
    assert sorted(file.name for file in tmp_path.glob("*.done")) == ["0.done", "1.done"]


@full_only
def test_torchrun_starts_ranks_with_cachalot(tmp_path):
    script = tmp_path / "unmodified.py"
    script.write_text("import torch\ntorch.ones(1, device='cuda')\nprint(torch.cuda.memory.get_allocator_backend())\n")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "cachalot",
        script,
    ]
    printed = succeeds(run_quickly(command))  # by two processes at once
    assert printed.replace("\n", "") == 2 * "cachalot"


# The ways of starting processes, and their number: importing PyTorch takes seconds in each that is spawned.
starts = pytest.mark.parametrize("start, count", [("fork", 2), ("spawn", 1)])


@starts
def test_a_data_loader_with_workers_feeds_pinned_batches(tmp_path, start, count):
    script = write_script(
        tmp_path / "loader.py",
        f"""
        from torch.utils.data import DataLoader, Dataset

        class Numbers(Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, index):
                return torch.full((1000,), float(index))

        if __name__ == "__main__":
            torch.ones(1, device="cuda")
            loader = DataLoader(
                Numbers(), batch_size=16, num_workers={count}, pin_memory=True, multiprocessing_context="{start}"
            )
            copies = 0
            for batch in loader:
                assert batch.is_pinned()
                on_gpu = batch.to("cuda", non_blocking=True)
                del batch
                torch.cuda.synchronize()
                assert on_gpu.cpu()[0, 0] == 16 * copies
                copies += 1
            assert copies == 4
        """,
    )
    succeeds(run_quickly([sys.executable, script]))


@starts
def test_a_child_uses_cuda_of_its_own(tmp_path, start, count):
    """A forked child may use CUDA when its parent has not begun to."""
    script = write_script(
        tmp_path / "children.py",
        f"""
        import torch.multiprocessing as mp

        def work(results):
            kept = torch.ones(3 << 20, dtype=torch.uint8, device="cuda")
            results.put(torch.cuda.memory_allocated())

        if __name__ == "__main__":
            context = mp.get_context("{start}")
            results = context.Queue()
            children = [context.Process(target=work, args=(results,)) for _ in range({count})]
            for child in children:
                child.start()
            assert [results.get(timeout=60) for _ in children] == [3 << 20] * {count}
            for child in children:
                child.join()
                assert child.exitcode == 0
            kept = torch.ones(5 << 20, dtype=torch.uint8, device="cuda")
            assert torch.cuda.memory_allocated() == 5 << 20
        """,
    )
    succeeds(run_quickly([sys.executable, script]))


def test_a_child_forked_after_cuda_use_is_refused_by_torch_and_exits_cleanly():
    process = run_python(
        """
        import os
        kept = torch.ones(3 << 20, dtype=torch.uint8, device="cuda")
        child = os.fork()
        if child == 0:
            try:
                torch.ones(1, device="cuda")
            except RuntimeError as error:
                raise SystemExit(0 if "forked subprocess" in str(error) else 3)
            raise SystemExit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        more = torch.ones(3 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == 6 << 20
        """
    )
    succeeds(process)


def test_tensors_graphs_and_pools_may_be_alive_at_exit():
    process = run_python(
        """
        import atexit, threading
        kept = [torch.ones(1 << shift, dtype=torch.uint8, device="cuda") for shift in range(8, 26)]
        kept[0].record_stream(torch.cuda.Stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            static = kept[3] + 1
        torch.special_place = [kept, graph]          # dies with the module
        local = threading.local(); local.kept = kept[5]
        atexit.register(lambda: torch.ones(1000, device="cuda"))
        pinned = torch.ones(1000, pin_memory=True)
        torch.cuda.memory._record_memory_history()
        print("done")
        """
    )
    assert succeeds(process) == "done\n"
    assert process.stderr == ""


@not_plug
def test_a_cuda_tensor_is_sent_to_a_spawned_process(tmp_path):
    script = write_script(
        tmp_path / "sender.py",
        """
        import torch.multiprocessing as mp

        def receive(tensors, answers):
            tensor = tensors.get()
            answers.put((tensor.shape[0], str(tensor.device), torch.cuda.memory_allocated()))
            small = tensor[:16].cpu()
            answers.put(small.tolist())
            tensor[:16].copy_(torch.full((16,), 9, dtype=torch.uint8))
            torch.cuda.synchronize()
            del tensor, small
            answers.put("done")

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            tensors, answers = context.Queue(), context.Queue()
            child = context.Process(target=receive, args=(tensors, answers))
            child.start()
            before = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
            sent = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
            sent[:16].copy_(torch.arange(16, dtype=torch.uint8))
            torch.cuda.synchronize()
            tensors.put(sent)
            assert answers.get(timeout=60) == (4 << 20, "cuda:0", 0)
            assert answers.get(timeout=60) == list(range(16))
            assert answers.get(timeout=60) == "done"
            child.join()
            assert child.exitcode == 0
            assert sent[:16].cpu().tolist() == [9] * 16
        """,
    )
    succeeds(run_quickly([sys.executable, script]))
