#include "launcher/core/diagnosis/hang_files.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "tests/unit/diagnosis/looks.hpp"
#include "tests/unit/diagnosis/told_hang.hpp"

using namespace torchup;
using namespace torchup::told;
using nlohmann::json;

TEST_CASE("the file has all threads with their paths", "[unit][hang_files]") {
  RankStacks stacks{.rank = Rank{3}, .helper_wrote = true};
  stacks.python = parse_python_stack(
      "Current thread 0x1 (most recent call first):\n  File \"/run/hook.py\", line 1 in _run\n\n"
      "Thread 0x2 (most recent call first):\n  File \"/home/user/data.py\", line 88 in read_shard\n");
  stacks.native = {{4242, 4243, "python", {"read (libc.so.6)"}, true, ""}, {4242, 4244, "x", {}, false, "it is gone"}};
  CHECK(hang_text(example(), std::vector{stacks}) ==
        page_text(example()) +
            "\nrank 3, pid 4242: sleeping in read of /mnt/data/shard-17.tar\n"
            "  Python thread 0x2, the main one\n"
            "    /home/user/data.py:88 read_shard\n"
            "  Python thread 0x1\n"
            "    /run/hook.py:1 _run\n"
            "  native thread 4243, python\n"
            "    read (libc.so.6)\n"
            "    (and further frames)\n"
            "  native thread 4244, x\n"
            "    it is gone\n");
}

TEST_CASE("the JSON has the same", "[unit][hang_files]") {
  HangReport told = example();
  told.number = 2;
  const json file = json::parse(hang_json(told));
  CHECK(file["schema"] == 1);
  CHECK(file["number"] == 2);
  CHECK(file["kind"] == "stuck");
  CHECK(file["summary"] == hang_summary(told));
  CHECK(file["culprits"] == json({3}));
  CHECK(file["silent_s"] == 64.9);
  CHECK(file["action"] == "none");
  CHECK(file["collective"] == json({{"group", "default_pg"},
                                    {"number", 1234},
                                    {"operation", "all_reduce"},
                                    {"sizes", "[1024, 1024]"},
                                    {"dtype", "float32"},
                                    {"missing", "3"},
                                    {"waiting", "0-2"},
                                    {"operations", json::array()}}));
  CHECK(file["ranks"].size() == 4);
  CHECK(file["ranks"][3] == json({{"rank", 3},
                                  {"host", "nodeb"},
                                  {"pid", 4242},
                                  {"state", "S"},
                                  {"kernel", "sleeping in read of /mnt/data/shard-17.tar"},
                                  {"frames", {"/home/user/data.py:88 read_shard", "/home/user/train.py:41 main"}},
                                  {"waits", nullptr},
                                  {"moving", false},
                                  {"groups", {{{"name", "0"}, {"description", "0_pg"}, {"number", 1233}}}},
                                  {"native", json::array()}}));
  CHECK(file["ranks"][0]["waits"] == json({{"group", "0"}, {"number", 1234}, {"operation", "gloo:all_reduce"}}));
  SECTION("without a verdict") {
    told.verdict.reset();
    const json none = json::parse(hang_json(told));
    CHECK(none["kind"] == nullptr);
    CHECK(none["collective"] == nullptr);
    CHECK(none["culprits"] == json::array());
  }
  SECTION("both sides of a mismatch") {
    told.verdict->collective->operations = {{looks::ranks("0-2"), "all_reduce", "[4]", 4, "float32", 16},
                                            {looks::ranks("3"), "broadcast", "[2]", 2, "int64", 16}};
    const json sides = json::parse(hang_json(told))["collective"]["operations"];
    CHECK(sides[1] == json({{"ranks", "3"}, {"operation", "broadcast"}, {"sizes", "[2]"}, {"dtype", "int64"}}));
  }
  SECTION("at most so many ranks") {
    told.looks.assign(hang_ranks_max + 1, told.looks[0]);
    told.verdict->culprits.assign(hang_ranks_max + 1, Rank{0});
    const json many = json::parse(hang_json(told));
    CHECK(many["ranks"].size() == hang_ranks_max);
    CHECK(many["culprits"].size() == hang_ranks_max);
  }
}

TEST_CASE("a hang is an event with its page", "[unit][hang_files]") {
  HangReport told = example();
  told.number = 4;
  const auto found = std::get<event::HangFound>(hang_event(told, std::nullopt, "/logs/hang_4.txt"));
  CHECK(found.number == 4);
  CHECK(found.kind == HangKind::stuck);
  CHECK(found.summary == hang_summary(told));
  CHECK(found.culprits == looks::list({3}));
  CHECK(found.silent_s == 64.9);
  CHECK(found.collective == told.verdict->collective);
  std::vector<std::string> page = hang_page(told, std::nullopt, "/logs/hang_4.txt");
  page.erase(page.begin());
  CHECK(found.page == page);
  SECTION("of its own ranks on another node") {
    const auto own = std::get<event::HangFound>(hang_event(told, looks::ranks("3"), ""));
    CHECK(own.summary == found.summary);
    CHECK(own.page.size() < page.size());
    CHECK(json::parse(hang_json(told, looks::ranks("3"))).at("ranks").size() == 1);
    CHECK(json::parse(hang_json(told)).at("ranks").size() == 4);
  }
  SECTION("that names no more culprits than the file") {
    std::vector<Rank> many;
    for (int i = 0; i <= static_cast<int>(hang_ranks_max); ++i) many.emplace_back(i);
    told.verdict->culprits = many;
    CHECK(std::get<event::HangFound>(hang_event(told, std::nullopt, "")).culprits.size() == hang_ranks_max);
  }
  SECTION("but what somebody wanted to see is no hang") {
    told.asked = true;
    told.silence = 0s;
    const auto shown = std::get<event::RanksShown>(hang_event(told, std::nullopt, ""));
    CHECK(shown.number == 4);
    CHECK(shown.summary.starts_with("What the ranks do"));
    CHECK(shown.page.size() + 1 == hang_page(told, std::nullopt, "").size());
  }
}

TEST_CASE("what strangers wrote moves no cursor", "[unit][hang_files]") {
  HangReport told = example();
  const std::string bad = "a\x1b[2J\n\xff\u202e";
  told.looks[3].host = told.looks[3].kernel = bad;
  told.looks[3].frames = {{bad, "/x/" + bad, 3}};
  told.looks[3].native = {bad};
  told.verdict->collective->description = told.verdict->collective->operation = bad;
  told.verdict->collective->dtype = bad;
  told.verdict->collective->operations = {{looks::ranks("3"), bad, bad, 1, bad, 4}};
  const std::vector<RankStacks> stacks{{.rank = Rank{3},
                                        .python = {"", {{1, false, {{bad, bad, 3}}, false}}, false},
                                        .native = {{1, 1, bad, {bad}, false, bad}}}};
  for (const HangKind kind : {HangKind::stuck, HangKind::mismatch, HangKind::network, HangKind::order}) {
    told.verdict->kind = kind;
    for (const std::string& line : hang_page(told, std::nullopt, bad)) {
      CHECK(line.find_first_of("\x1b\n\xff") == std::string::npos);
      CHECK(line.find("\u202e") == std::string::npos);
    }
    const std::string text = hang_text(told, stacks);
    CHECK(text.find_first_of("\x1b\xff") == std::string::npos);
    CHECK(hang_json(told).find_first_of("\x1b\xff\xe2") == std::string::npos);
  }
}

TEST_CASE("any verdict on any looks gives a page", "[unit][hang_files]") {
  std::mt19937 random{17};
  const auto one_of = [&](auto... values) {
    const std::common_type_t<decltype(values)...> all[] = {values...};
    return all[random() % sizeof...(values)];
  };
  for (int round = 0; round < 500; ++round) {
    const int world = 1 + static_cast<int>(random() % 6);
    HangReport told;
    for (int rank = 0; rank < world; ++rank) {
      RankLook look = one_of(looks::still(rank), looks::moving(rank), looks::silent(rank));
      look.seen = random() % 4 != 0;
      if (random() % 2) look = looks::in(look, "0", fmt::format("0-{}", world), one_of(1, 2, 3));
      if (world == 1) look.groups.clear();
      if (random() % 8 == 0) look.traced = true;
      if (random() % 8 == 0) look.raised_ns = 1;
      if (random() % 5 != 0) told.looks.push_back(look);
    }
    told.verdict = judge_hang(world, told.looks);
    told.action = one_of(HangAction::none, HangAction::abort, HangAction::restart);
    told.on_hang = one_of(OnHang::report, OnHang::abort, OnHang::restart);
    const std::string page = page_text(told);
    // All that were looked at are on it, and each culprit stands in the first line.
    for (const RankLook& look : told.looks) {
      const auto lines = hang_page(told, RankSet{std::vector{look.rank}}, "");
      REQUIRE(lines.size() >= 3);
      REQUIRE(lines[1].starts_with(fmt::format("  rank {}", look.rank.value())));
    }
    REQUIRE(page.starts_with("No progress for 0 s"));
    REQUIRE(json::parse(hang_json(told))["ranks"].size() == told.looks.size());
  }
}
