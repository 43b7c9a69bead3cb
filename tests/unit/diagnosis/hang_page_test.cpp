#include "launcher/core/diagnosis/hang_page.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>

#include "rendezvous/core/ops/withheld.hpp"
#include "tests/unit/diagnosis/looks.hpp"
#include "tests/unit/diagnosis/told_hang.hpp"

using namespace torchup;
using namespace torchup::told;

namespace {

/// The example with another verdict.
HangReport judged(HangKind kind, std::initializer_list<int> culprits) {
  HangReport told = example();
  told.verdict->kind = kind;
  told.verdict->culprits = looks::list(culprits);
  return told;
}

const std::string front = "No progress for 64 s, last step 1233: ";
const std::string call = "all_reduce #1234 (default_pg, 4.0 MiB float32)";

}  // namespace

TEST_CASE("a hang is told on one page", "[unit][hang_page]") {
  CHECK("torchup: " + page_text(example(), "logs/none_x1/attempt_0/hang_0.txt") ==
        "torchup: No progress for 64 s, last step 1233: rank 3 on nodeb is stuck; ranks 0-2 wait for it: all_reduce "
        "#1234 (default_pg, 4.0 MiB float32)\n"
        "  rank 3, nodeb, pid 4242: sleeping in read of /mnt/data/shard-17.tar\n"
        "    data.py:88 read_shard\n"
        "    train.py:41 main\n"
        "  ranks 0-2: sleeping in futex\n"
        "    distributed_c10d.py:4181 all_reduce\n"
        "    train.py:57 main\n"
        "  all stacks: logs/none_x1/attempt_0/hang_0.txt; nothing was done (--on-hang=report)\n");
}

TEST_CASE("each kind of hang has its words", "[unit][hang_page]") {
  const std::string wait = "; ranks 0-2 wait for it: " + call;
  CHECK(hang_summary(judged(HangKind::stopped, {3})) == front + "rank 3 on nodeb is stopped" + wait);
  CHECK(hang_summary(judged(HangKind::busy, {3})) == front + "rank 3 on nodeb is busy" + wait);
  CHECK(hang_summary(judged(HangKind::debugged, {3})) == front + "rank 3 on nodeb is debugged" + wait);
  CHECK(hang_summary(judged(HangKind::raised, {3})) ==
        front + "rank 3 on nodeb has raised an exception and does not end" + wait);
  CHECK(hang_summary(judged(HangKind::order, {0, 1})) ==
        front + "ranks 0-1 on nodea wait for each other: one in " + call);
  CHECK(hang_summary(judged(HangKind::network, {})) ==
        front + "all ranks are in a collective, and the network brings nothing: " + call);
  SECTION("of several culprits, which have a host in common or not") {
    HangReport told = judged(HangKind::stuck, {2, 3});
    told.verdict->collective->waiting = looks::ranks("0");
    CHECK(hang_summary(told) == front + "ranks 2-3 are stuck; rank 0 waits for them: " + call);
    told.looks[2].host = "nodeb";
    CHECK(hang_summary(told) == front + "ranks 2-3 on nodeb are stuck; rank 0 waits for them: " + call);
  }
  SECTION("where nobody waits") {
    HangReport told = judged(HangKind::stuck, {3});
    told.verdict->collective.reset();
    told.verdict->last_step.reset();
    CHECK(hang_summary(told) == "No progress for 64 s: rank 3 on nodeb is stuck");
  }
  SECTION("of a mismatch with what each side calls") {
    HangReport told = judged(HangKind::mismatch, {3});
    told.verdict->collective->operations = {
        {looks::ranks("0-2"), "all_reduce", "[1024, 1024]", elements, "float32", 4 * elements},
        {looks::ranks("3"), "broadcast", "[2]", 2, "int64", 16}};
    CHECK(hang_summary(told) == front +
                                    "ranks do not do the same: as #1234 of default_pg ranks 0-2 on nodea all_reduce "
                                    "[1024, 1024] (4.0 MiB float32), rank 3 on nodeb broadcast [2] (16 B int64)");
  }
}

TEST_CASE("what the program calls stands behind what is ours, and is not for those who may only read",
          "[unit][hang_page]") {
  const HangKind kind = GENERATE(HangKind::debugged, HangKind::mismatch, HangKind::raised, HangKind::stopped,
                                 HangKind::stuck, HangKind::busy, HangKind::order, HangKind::network);
  CAPTURE(kind);
  HangReport told = judged(kind, {3});
  told.verdict->collective->description = "tenant: secret";
  told.verdict->collective->operation = "secret";
  told.verdict->collective->dtype = "secret";
  told.verdict->collective->operations = {{looks::ranks("3"), "secret", "[secret]", 2, "secret", 16}};
  const HangWords words = hang_words(told);
  CHECK(words.ours.find("secret") == std::string::npos);
  CHECK(words.said.find("secret") != std::string::npos);
  CHECK(hang_summary(told) == words.ours + ": " + words.said);
  CHECK(summary_without_message(hang_summary(told)) == words.ours);
}

TEST_CASE("what is not known of a collective is left out", "[unit][hang_page]") {
  HangReport told = example();
  AwaitedCollective& one = *told.verdict->collective;
  const auto in = [&] {
    const std::string summary = hang_summary(told);
    return summary.substr(summary.rfind(": ") + 2);
  };
  one.bytes = -1;
  CHECK(in() == "all_reduce #1234 (default_pg, 1048576 elements float32)");
  one.dtype.clear();
  CHECK(in() == "all_reduce #1234 (default_pg, 1048576 elements)");
  one.elements = 0;  // a barrier
  CHECK(in() == "all_reduce #1234 (default_pg)");
  one.description.clear();
  one.operation.clear();
  CHECK(in() == "collective #1234 (group 0)");
}

TEST_CASE("sizes are told in the unit that fits", "[unit][hang_page]") {
  HangReport told = example();
  const auto amount = [&](std::int64_t bytes) {
    told.verdict->collective->bytes = bytes;
    const std::string summary = hang_summary(told);
    const auto begin = summary.find("default_pg, ") + 12;
    return summary.substr(begin, summary.find(" float32") - begin);
  };
  CHECK(amount(1023) == "1023 B");
  CHECK(amount(1024) == "1.0 KiB");
  CHECK(amount(1536 * 1024) == "1.5 MiB");
  CHECK(amount(std::int64_t{3} << 30) == "3.0 GiB");
  CHECK(amount(std::int64_t{1} << 60) == "1048576.0 TiB");
}

TEST_CASE("the last line says what is done", "[unit][hang_page]") {
  const auto last = [](OnHang on_hang, HangAction action, HangSpared spared = HangSpared::nobody) {
    HangReport told = example();
    told.on_hang = on_hang;
    told.action = action;
    told.spared = spared;
    return hang_page(told, std::nullopt, "").back();
  };
  CHECK(last(OnHang::report, HangAction::none) == "  nothing was done (--on-hang=report)");
  CHECK(last(OnHang::abort, HangAction::abort) == "  the job is ended (--on-hang=abort)");
  CHECK(last(OnHang::restart, HangAction::restart) == "  the workers are started again (--on-hang=restart)");
  const auto nothing = [&](HangSpared spared) { return last(OnHang::abort, HangAction::none, spared); };
  const std::string front_of = "  nothing was done (--on-hang=abort: ";
  CHECK(nothing(HangSpared::busy) == front_of + "who is busy is left alone)");
  CHECK(nothing(HangSpared::debugged) == front_of + "who is debugged is left alone)");
  CHECK(nothing(HangSpared::foreign) == front_of + "some ranks are not ours)");
  CHECK(nothing(HangSpared::unseen) == front_of + "who was not seen is left alone)");
  CHECK(nothing(HangSpared::doubtful) == front_of + "some ranks move; they are looked at once more)");
}

TEST_CASE("who asks sees the ranks, and nothing is done", "[unit][hang_page]") {
  HangReport told = example();
  told.asked = true;
  CHECK(hang_summary(told).starts_with("What the ranks do, last step 1233: rank 3 on nodeb is stuck; "));
  CHECK(hang_page(told, std::nullopt, "x/hang_0.txt").back() == "  all stacks: x/hang_0.txt");
  told.verdict.reset();
  CHECK(hang_summary(told) == "What the ranks do: they get on");
  CHECK(hang_page(told, std::nullopt, "").back() == "    train.py:41 main");
}

TEST_CASE("another node shows its own ranks", "[unit][hang_page]") {
  const auto lines = hang_page(example(), looks::ranks("0-1"), "");
  CHECK(lines[1] == "  ranks 0-1: sleeping in futex");
  CHECK(lines.size() == 5);
}

TEST_CASE("ranks are told together when they do the same", "[unit][hang_page]") {
  HangReport told = example();
  SECTION("each with a peer of its own") {
    for (int rank = 0; rank < 3; ++rank) {
      told.looks[static_cast<std::size_t>(rank)].kernel =
          fmt::format("sleeping in recvfrom of 10.0.0.{}:4{}", rank, rank);
    }
    CHECK(hang_page(told, std::nullopt, "")[4] == "  ranks 0-2: sleeping in recvfrom");
  }
  SECTION("but not with another stack, state or end") {
    const auto blocks = [&] { return hang_page(told, looks::ranks("0-2"), "").size(); };
    const std::size_t before = blocks();
    SECTION("stack") { told.looks[1].frames[2].line = 58; }
    SECTION("call") { told.looks[1].kernel = "sleeping in poll"; }
    SECTION("exception") { told.looks[1].raised_ns = 1; }
    SECTION("native stack") { told.looks[1].native = {"poll (libc.so.6)"}; }
    SECTION("not seen") { told.looks[1].seen = false; }
    CHECK(blocks() > before);
  }
  SECTION("a culprit stands alone") {
    told.looks[3].kernel = told.looks[0].kernel;
    told.looks[3].frames = told.looks[0].frames;
    CHECK(hang_page(told, std::nullopt, "")[1] == "  rank 3, nodeb, pid 4242: sleeping in futex");
  }
}

TEST_CASE("native frames stand before Python's", "[unit][hang_page]") {
  HangReport told = example();
  told.looks[3].native = std::vector<std::string>(10, "read (libc.so.6)");
  const auto lines = hang_page(told, looks::ranks("3"), "");
  CHECK(lines[2] == "    read (libc.so.6)");
  CHECK(lines[7] == "    read (libc.so.6)");
  CHECK(lines[8] == "    data.py:88 read_shard");
}

TEST_CASE("who was not seen is told so", "[unit][hang_page]") {
  HangReport told = example();
  told.verdict->unseen = looks::ranks("2,4-7");
  told.looks[2].seen = false;
  const std::string page = page_text(told);
  CHECK(page.find("  rank 2, nodea, pid 4002: not seen\n") != std::string::npos);
  CHECK(page.find("  ranks 4-7: not seen\n") != std::string::npos);
}

TEST_CASE("of who was not seen, or has ended, nobody says that it is busy or stuck", "[unit][hang_page]") {
  const std::string wait = "; ranks 0-2 wait for it: " + call;
  HangReport told = judged(HangKind::busy, {3});
  told.verdict->unseen = looks::ranks("3");
  CHECK(hang_summary(told) == front + "rank 3 on nodeb was not seen" + wait);
  told.looks[3].seen = false;
  CHECK(hang_summary(told) == front + "rank 3 on nodeb was not seen" + wait);
  told = judged(HangKind::stuck, {3});
  told.looks[3].state = state_dead;
  CHECK(hang_summary(told) == front + "rank 3 on nodeb has ended" + wait);
  SECTION("but of several of which one is there") {
    told.verdict->culprits = looks::list({2, 3});
    CHECK(hang_summary(told) == front + "ranks 2-3 are stuck; ranks 0-2 wait for them: " + call);
  }
}

TEST_CASE("a page has its limits", "[unit][hang_page]") {
  HangReport told = example();
  told.looks.resize(1);
  const RankLook one = told.looks[0];
  told.looks.clear();
  for (int rank = 0; rank < static_cast<int>(told_blocks_max) + 1; ++rank) {
    RankLook look = one;
    look.rank = Rank{rank};
    look.frames[0].line = rank;
    told.looks.push_back(look);
  }
  told.verdict->culprits.clear();
  const std::string more = "further ranks are not shown";
  CHECK(page_text(told).find("  1 " + more) != std::string::npos);
  told.looks.pop_back();
  CHECK(page_text(told).find(more) == std::string::npos);

  std::vector<Rank> odd;
  for (int i = 0; i < 1000; ++i) odd.emplace_back(i * i);
  const std::string text = ranks_text(RankSet{odd});
  CHECK(text.starts_with("ranks 0-1,4,9,16,"));
  CHECK(text.ends_with("… (1000 in all)"));
  CHECK(text.size() < told_ranks_bytes_max + 40);
}
