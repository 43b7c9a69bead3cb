#include "launcher/core/diagnosis/kernel_view.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <set>
#include <string>

#include "launcher/core/diagnosis/socket_table.hpp"
#include "rendezvous/core/diagnosis/rank_look.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

// Linux 6.18 wrote these.
const std::string stat_text =
    "12208 (cat) S 12205 12202 4865 0 -1 4194304 119 0 0 0 3 4 5 6 20 0 1 0 691887 3133440 390 18446744073709551615 "
    "94546328727552 94546328747433 140721465396080 0 0 0 0 6 0 1 0 0 17 0 0 0 0 0 0 94546328763440 94546328765056 0\n";
const std::string status_text =
    "Name:\tcat\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t12208\nPid:\t12208\nPPid:\t12205\nTracerPid:\t77\n"
    "SigPnd:\t0000000000000200\nShdPnd:\t0000000000004000\nSigBlk:\t8000000000000001\nSigIgn:"
    "\t0000000000001000\nSigCgt:\t1000000000000002\nSeccomp:\t0\n"
    "voluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t7\n";
const std::string reading =
    "0 0x3 0x7fb02116e000 0x20000 0x7fb0211fdb60 0xffffffff 0x0 0x7ffc44f508c8 0x7fb0212e62ad\n";
const std::string tcp =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    "   0: 0100007F:ADC5 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1402342 1 0 100 0\n"
    "   1: 0200A8C0:9C24 0700000A:01BB 01 00000000:00000000 00:00000000 00000000     0        0 1403832 2 0 20 4\n";
const std::string tcp6 =
    "  sl  local_address                         remote_address                        st tx_queue rx_queue tr\n"
    "   1: 00000000000000000000000001000000:9085 00000000000000000000000001000000:A861 01 00000000:00000001 "
    "00:00000000 00000000     0        0 1404069 2 0 100 0 0 10 0\n"
    "   2: 0000000000000000FFFF00000100007F:9085 0000000000000000FFFF00000700000A:01BB 01 00000000:00000001 "
    "00:00000000 00000000     0        0 1404070 2 0 100 0 0 10 0\n"
    "   3: B80D0120000000000000000001000000:9085 B80D01200000CDAB0000000000000100:01BB 01 00000000:00000001 "
    "00:00000000 00000000     0        0 1404071 2 0 100 0 0 10 0\n";
const std::string unix_sockets =
    "Num       RefCount Protocol Flags    Type St Inode Path\n"
    "00000000bf1cb055: 00000003 00000000 00000000 0005 03 1400905\n"
    "0000000039a1e6fa: 00000003 00000000 00000000 0001 03 1400906 /run/a socket\n";

KernelView view(char state, std::optional<SystemCall> call = {}, std::string target = {}, std::string channel = {}) {
  return {.state = state, .tracer = 0, .call = call, .target = std::move(target), .wait_channel = std::move(channel)};
}

std::string text(const KernelView& one) { return kernel_text(one, Processor::x86_64); }

}  // namespace

TEST_CASE("a thread's stat is read", "[unit][kernel_view]") {
  CHECK(parse_thread_stat(stat_text) == ThreadStat{'S', 12205, 7, 11, 691887});
  SECTION("whatever its name is") {
    std::string odd = stat_text;
    odd.replace(odd.find("cat"), 3, "a) R 1 (\n) x");
    CHECK(parse_thread_stat(odd) == ThreadStat{'S', 12205, 7, 11, 691887});
  }
  SECTION("but not a part of it") {
    const auto start = stat_text.find("691887");
    for (std::size_t size = 0; size <= start + 6; ++size) CHECK_FALSE(parse_thread_stat(stat_text.substr(0, size)));
    CHECK_FALSE(parse_thread_stat("1 (x) S a 1 1"));
    CHECK_FALSE(parse_thread_stat(")"));
  }
}

TEST_CASE("a thread's status is read", "[unit][kernel_view]") {
  CHECK(parse_thread_status(status_text) == ThreadStatus{77, 157, 0x1000000000000002, 0x8000000000000001, 0x200});
  CHECK(parse_thread_status("") == ThreadStatus{});
  CHECK(parse_thread_status("Name:\tTracerPid:\t9\nTracerPid:\t5\n").tracer == 5);
  CHECK(parse_thread_status("TracerPid:\tx\nSigCgt:\tzz\nvoluntary_ctxt_switches:\t3\n") == ThreadStatus{});
}

TEST_CASE("a set of signals has those whose bits are set", "[unit][kernel_view]") {
  const std::uint64_t caught = parse_thread_status(status_text).caught_signals;
  CHECK(has_signal(caught, 2));
  CHECK(has_signal(caught, 61));
  CHECK(has_signal(0x8000000000000000, 64));
  for (const int other : {1, 3, 60, 62, 64, 0, -1, 65, 66, 125, 1 << 30}) CHECK_FALSE(has_signal(caught, other));
}

TEST_CASE("a system call is read", "[unit][kernel_view]") {
  CHECK(parse_system_call(reading) == SystemCall{0, {3, 0x7fb02116e000, 0x20000, 0x7fb0211fdb60, 0xffffffff, 0}});
  CHECK(parse_system_call("-1 0x7ffc44f508c8 0x7fb0212e62ad\n") == SystemCall{});
  for (const char* none : {"", "running\n", "0 0x3", "0 3 4 5 6 7 8", "0 0x3 0x4 0x5 0x6 0x7 0x11111111111111111"}) {
    CHECK_FALSE(parse_system_call(none));
  }
}

TEST_CASE("system calls have their numbers", "[unit][kernel_view]") {
  CHECK(system_call_kind(0, Processor::x86_64)->name == "read");
  CHECK(system_call_kind(63, Processor::aarch64)->name == "read");
  CHECK(system_call_kind(202, Processor::x86_64)->name == "futex");
  CHECK(system_call_kind(98, Processor::aarch64)->name == "futex");
  CHECK(system_call_kind(257, Processor::x86_64)->name == "openat");
  CHECK(system_call_kind(56, Processor::aarch64)->argument == Argument::path);
  CHECK(system_call_kind(45, Processor::x86_64)->name == "recvfrom");
  CHECK(system_call_kind(207, Processor::aarch64)->name == "recvfrom");
  CHECK(system_call_kind(7, Processor::x86_64)->argument == Argument::descriptor_list);
  for (const auto processor : {Processor::x86_64, Processor::aarch64, Processor::other}) {
    CHECK(system_call_kind(-1, processor) == nullptr);
    CHECK(system_call_kind(100'000, processor) == nullptr);
  }
  CHECK(system_call_kind(0, Processor::other) == nullptr);
  std::set<int> x86_64, aarch64;
  for (const SystemCallKind& kind : system_call_kinds()) {
    CHECK(x86_64.insert(kind.x86_64).second);
    if (kind.aarch64 >= 0) CHECK(aarch64.insert(kind.aarch64).second);
    CHECK(kind.place < (kind.argument == Argument::descriptor_list ? 5 : 6));
  }
}

TEST_CASE("a state is told in words", "[unit][kernel_view]") {
  const SystemCall read{0, {3}}, futex{202, {}}, odd{9999, {}}, outside{};
  CHECK(text(view('S', read, "/mnt/data/shard-17.tar")) == "sleeping in read of /mnt/data/shard-17.tar");
  CHECK(text(view('S', SystemCall{45, {5}}, "10.0.0.7:443")) == "sleeping in recvfrom of 10.0.0.7:443");
  CHECK(text(view('D', SystemCall{257, {}}, "/nfs/data")) == "uninterruptible in openat of /nfs/data");
  CHECK(text(view('S', futex, "", "futex_do_wait")) == "sleeping in futex");
  CHECK(text(view('S', odd)) == "sleeping in system call 9999");
  CHECK(text(view('S', odd, "", "odd_wait")) == "sleeping in odd_wait");
  CHECK(text(view('D', outside, "", "folio_wait_bit_common")) == "uninterruptible in folio_wait_bit_common");
  CHECK(text(view('S', std::nullopt, "", "do_wait")) == "sleeping in do_wait");
  CHECK(text(view('S')) == "sleeping");
  CHECK(text(view('S', outside)) == "sleeping");
  CHECK(text(view('R', read, "/x")) == "running");
  CHECK(text(view('T', read, "/x")) == "stopped");
  CHECK(text(view('Z')) == "ended");
  CHECK(text(view('?')) == "in an unknown state");
  KernelView traced = view('t');
  traced.tracer = 77;
  CHECK(text(traced) == "stopped by a debugger, traced by process 77");
}

TEST_CASE("what a worker chose is told without harm", "[unit][kernel_view]") {
  CHECK(text(view('S', SystemCall{0, {}}, "/a\x1b[2J\n\xff")) == "sleeping in read of /a\\x1b[2J\\n\\xff");
  KernelView longest = view('S', SystemCall{0, {}}, std::string(10'000, 'x'));
  CHECK(text(longest).size() == look_kernel_bytes_max);
  longest.tracer = 77;
  CHECK(text(longest).size() == look_kernel_bytes_max);
  CHECK(text(longest).ends_with("x, traced by process 77"));
}

TEST_CASE("descriptors are told by what they are", "[unit][kernel_view]") {
  CHECK(descriptor_text("/mnt/x") == "/mnt/x");
  CHECK(descriptor_text("pipe:[123]") == "a pipe");
  CHECK(descriptor_text("anon_inode:[eventfd]") == "[eventfd]");
  CHECK(descriptor_text("socket:[12]") == "a socket");
  CHECK(socket_inode("socket:[1403832]") == 1403832);
  for (const char* none : {"socket:[", "socket:[]", "socket:[x]", "/socket:[1]", "socket:[1]x"}) {
    CHECK_FALSE(socket_inode(none));
  }
}

TEST_CASE("sockets are found by their inodes", "[unit][kernel_view]") {
  CHECK(internet_peer(tcp, 1403832) == "10.0.0.7:443");
  CHECK(internet_peer(tcp, 1402342) == "127.0.0.1:44485 (its own)");
  CHECK(internet_peer(tcp6, 1404069) == "[::1]:43105");
  CHECK(internet_peer(tcp6, 1404070) == "10.0.0.7:443");
  CHECK(internet_peer(tcp6, 1404071) == "[2001:db8:abcd::1:0]:443");
  CHECK_FALSE(internet_peer(tcp, 1));
  CHECK_FALSE(internet_peer("", 1));
  CHECK_FALSE(internet_peer("h\n0: x y 0A a b c d e 7\n", 7));
  CHECK_FALSE(internet_peer("h\n0: 0100007F:1 0100007F 0A a b c d e 7\n", 7));
  CHECK(unix_path(unix_sockets, 1400905) == "a Unix socket");
  CHECK(unix_path(unix_sockets, 1400906) == "/run/a socket");
  CHECK_FALSE(unix_path(unix_sockets, 1));
}

TEST_CASE("what a worker used tells whether it moves", "[unit][kernel_view]") {
  const Activity before{1'000'000'000, 100, 5'000'000'000, 1'000'000};
  const auto moves = [&](auto change, Duration between = 1s) {
    Activity after = before;
    change(after);
    return is_moving(before, after, between, false);
  };
  CHECK_FALSE(moves([](Activity&) {}));
  CHECK(is_moving(before, before, 1s, true));
  CHECK(moves([](Activity& a) { *a.main_ran_ns += 5'000'000; }));
  CHECK_FALSE(moves([](Activity& a) { *a.main_ran_ns += 4'999'999; }));
  CHECK(moves([](Activity& a) { *a.main_switches += 20; }));
  CHECK_FALSE(moves([](Activity& a) { *a.main_switches += 19; }));
  CHECK(moves([](Activity& a) { *a.tree_ran_ns += 50'000'000; }));
  CHECK_FALSE(moves([](Activity& a) { *a.tree_ran_ns += 49'999'999; }));
  CHECK(moves([](Activity& a) { *a.tree_io_bytes += 65536; }));
  CHECK_FALSE(moves([](Activity& a) { *a.tree_io_bytes += 65535; }));
  SECTION("in proportion to the time between the looks") {
    CHECK_FALSE(moves([](Activity& a) { *a.main_switches += 39; }, 2s));
    CHECK(moves([](Activity& a) { *a.main_switches += 40; }, 2s));
    CHECK_FALSE(moves([](Activity& a) { *a.main_switches += 1'000; }, 0s));
  }
  SECTION("what is not known or has gone does not count") {
    CHECK_FALSE(is_moving({}, before, 1s, false));
    CHECK_FALSE(is_moving(before, {}, 1s, false));
    CHECK_FALSE(moves([](Activity& a) { *a.tree_ran_ns -= 1'000'000'000; }));
  }
}

TEST_CASE("no text of the kernel, however spoilt, does harm", "[unit][kernel_view]") {
  std::mt19937 random{13};
  for (int round = 0; round < 3000; ++round) {
    std::string all[] = {stat_text, status_text, reading, tcp, tcp6, unix_sockets};
    for (std::string& each : all) {
      for (auto i = random() % 6; i > 0 && !each.empty(); --i) {
        const std::size_t at = random() % each.size();
        if (random() % 2) {
          each[at] = static_cast<char>(random());
        } else {
          each.erase(at, random() % 20);
        }
      }
    }
    static_cast<void>(parse_thread_stat(all[0]));
    static_cast<void>(parse_thread_status(all[1]));
    const KernelView one = view('S', parse_system_call(all[2]), internet_peer(all[3], 1403832).value_or(all[5]));
    const std::string words =
        text(one) + internet_peer(all[4], 1404071).value_or("") + (unix_path(all[5], 1400906) ? "" : "none");
    REQUIRE(words.find_first_of("\n\x1b") == std::string::npos);
    REQUIRE(text(one).size() <= look_kernel_bytes_max);
  }
}
