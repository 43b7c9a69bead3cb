#include "launcher/core/record/cause_words.hpp"

#include <catch2/catch.hpp>

#include "launcher/core/text/text.hpp"

using namespace torchup;

namespace {

CauseKind kind(std::string_view output) { return cause_kind(last_words(lines_of(output))); }

}  // namespace

// The texts are what torch 2.15 over gloo, NCCL 2.30 and Python 3.11 wrote.
TEST_CASE("who lost another rank, or the store, is no cause", "[unit][cause]") {
  for (const char* const words :
       {"RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
        "[127.0.0.1]:5231",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [10.0.0.7]:4711: Connection "
        "reset "
        "by peer",
        "RuntimeError: Application timeout caused pair closure",
        "RuntimeError: [enforce fail] Timed out waiting 1800000ms for recv operation to complete",
        "RuntimeError: Timed out waiting 2000ms for send operation to complete",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a "
        "network error, NCCL version 2.30.7\nncclRemoteError: A call failed possibly due to a network error",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "  what():  Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or "
        "crash?",
        "  what():  Failed to send, sent 0 bytes. Connection was likely closed. Did the remote server shutdown or "
        "crash?",
        "  what():  wait timeout after 300000ms, keys: /default_pg/0//cpu//0/1",
        "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] no "
        "error",
        "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms",
        "RuntimeError: Rank 1 timed out in monitoredBarrier after 2000 ms.",
        "Observed flight recorder dump signal from another rank via TCPStore.",
        "remote error detected from rank: 3",
        "RuntimeError: Remote peer closed the connection.",
        "torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /default_pg/0//cpu//0/1",
        "torchup::runtime::Error: rank 1 lost the store at 10.0.0.7:29500 while the ranks met: End of file",
        "BrokenPipeError: [Errno 32] Broken pipe"}) {
    INFO(words);
    CHECK(cause_kind(words) == CauseKind::consequence);
  }
  CHECK(cause_kind("ValueError: bad") == CauseKind::unknown);
  CHECK(cause_kind("Timed out waiting for a lock") == CauseKind::unknown);
  CHECK(cause_kind("") == CauseKind::unknown);
}

TEST_CASE("what somebody did himself is a cause, though the store or NCCL says it", "[unit][cause]") {
  CHECK(cause_kind(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
            "address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use") ==
        CauseKind::port_taken);
  CHECK(cause_kind("OSError: [Errno 28] No space left on device: '/x'") == CauseKind::disk_full);
  CHECK(cause_kind("RuntimeError: DataLoader worker (pid 42) is killed by signal: Killed. ") ==
        CauseKind::loader_killed);
  CHECK(cause_kind("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.") == CauseKind::gpu_memory);
  CHECK(cause_kind("RuntimeError: [enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4") ==
        CauseKind::sizes_differ);
  CHECK(cause_kind("DistBackendError: NCCL error in: x, invalid usage\nncclInvalidUsage: This usually reflects") ==
        CauseKind::nccl_usage);
}

TEST_CASE("every kind but one has its plain words", "[unit][cause]") {
  for (auto kind = CauseKind::unknown; kind <= CauseKind::nccl_cuda_error;
       kind = static_cast<CauseKind>(static_cast<int>(kind) + 1))
    CHECK(plain_words(kind).empty() == (kind == CauseKind::unknown));
}

TEST_CASE("of exceptions that were raised one while another was handled the first counts", "[unit][cause]") {
  const std::string own = R"(Traceback (most recent call last):
  File "t.py", line 5, in <module>
    step()
ValueError: loss is nan

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "t.py", line 7, in <module>
    dist.barrier()
RuntimeError: Connection closed by peer [127.0.0.1]:5231
)";
  CHECK(last_words(lines_of(own)) == "ValueError: loss is nan");
  CHECK(kind(own) == CauseKind::unknown);
  CHECK(kind(R"(Traceback (most recent call last):
  File "t.py", line 5, in <module>
RuntimeError: Connection closed by peer [127.0.0.1]:5231

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "t.py", line 7, in <module>
RuntimeError: training failed
)") == CauseKind::consequence);
  SECTION("but not one that was told of before") {
    CHECK(kind("Traceback (most recent call last):\n  File \"t.py\"\nBrokenPipeError: Broken pipe\nretrying\n"
               "Traceback (most recent call last):\n  File \"t.py\"\nValueError: bad\n") == CauseKind::unknown);
  }
  SECTION("nor one that was handled, after which the worker has gone on") {
    std::string output =
        "Traceback (most recent call last):\n  File \"t.py\"\nConnectionError: Connection reset by peer\n";
    for (int step = 0; step < 60; ++step) output += "step\n";
    CHECK(kind(output) == CauseKind::unknown);
  }
  SECTION("though libraries have said something at the process's end") {
    std::string output =
        "Traceback (most recent call last):\n  File \"t.py\"\nRuntimeError: Connection closed by peer\n";
    for (int value = 0; value < 40; ++value) output += "wandb: loss 0.5\n";
    CHECK(kind(output) == CauseKind::consequence);
  }
  SECTION("however many frames of its own come behind it") {
    std::string output =
        "Traceback (most recent call last):\n  File \"t.py\"\nDistNetworkError: failed to recv\nException "
        "raised from recvBytes:\n";
    for (int frame = 0; frame < 80; ++frame) output += "frame #7: c10::Error\n";
    CHECK(kind(output) == CauseKind::consequence);
  }
  SECTION("or of its symbolizer, with TORCH_SHOW_CPP_STACKTRACES") {
    for (const std::string mark : {"", "[rank1]: "}) {
      std::string output = mark + "Traceback (most recent call last):\n" + mark + "  File \"t.py\"\n" + mark +
                           "DistNetworkError: failed to recv\n" + mark + "Exception raised from recvBytes:\n" + mark +
                           "C++ CapturedTraceback:\n";
      for (int frame = 4; frame < 84; ++frame) output += mark + "#" + std::to_string(frame) + " ?? from libc10.so:7\n";
      CHECK(kind(output) == CauseKind::consequence);
    }
  }
  SECTION("however long it is itself") {
    std::string output =
        "Traceback (most recent call last):\n  File \"t.py\"\nRuntimeError: Error(s) in loading state_dict:\n";
    for (int key = 0; key < 80; ++key) output += "\tsize mismatch for layer.weight\n";
    CHECK(last_words(lines_of(output)).starts_with("RuntimeError: Error(s) in loading state_dict:\n"));
  }
  SECTION("with torch's mark before every line, and with what comes behind") {
    CHECK(last_words(lines_of("[rank1]: Traceback (most recent call last):\n[rank1]:   File \"t.py\", line 5\n"
                              "[rank1]:     f()\n[rank1]: ValueError: bad\n\n[W1123] destroy_process_group was not "
                              "called: Connection closed by peer\n")) == "ValueError: bad");
  }
}

TEST_CASE("of several exceptions at once their words count, not what is drawn between them", "[unit][cause]") {
  const std::string group = R"(  + Exception Group Traceback (most recent call last):
|   File "t.py", line 3, in <module>
|     raise ExceptionGroup("two", [OSError(28, "No space left on device"), ValueError(1)])
| ExceptionGroup: two (2 sub-exceptions)
+-+---------------- 1 ----------------
  | OSError: [Errno 28] No space left on device
  +---------------- 2 ----------------
  | ValueError: 1
  +------------------------------------
)";
  CHECK(last_words(lines_of(group)) ==
        "ExceptionGroup: two (2 sub-exceptions)\nOSError: [Errno 28] No space left on device\nValueError: 1");
  CHECK(kind(group) == CauseKind::disk_full);
  CHECK(is_ruler("+-+---------------- 1 ----------------"));
  CHECK_FALSE(is_ruler("| ValueError: 1"));
  CHECK_FALSE(is_ruler("--"));
  CHECK_FALSE(is_ruler(""));
}

TEST_CASE("without a traceback the last lines count, or what a C++ program was terminated by", "[unit][cause]") {
  CHECK(kind("reading\nread: Connection reset by peer\n") == CauseKind::consequence);
  CHECK(kind("Connection reset by peer, again in 1 s\na\nb\nc\n") == CauseKind::unknown);
  CHECK(kind("terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  Watchdog caught "
             "collective operation timeout\nframe #0: x\nframe #1: x\nframe #2: x\nframe #3: x\n") ==
        CauseKind::consequence);
  CHECK(last_words({}).empty());
  CHECK(last_words({"", " "}).empty());
}

TEST_CASE("last words have a limit", "[unit][cause]") {
  const std::string line(10'000, 'x');
  CHECK(last_words({line, line, line}).size() == last_words_bytes_max);
  CHECK(last_words({"Traceback (most recent call last):", line, line}).size() == last_words_bytes_max);
}
