#include "rendezvous/core/ops/job_page.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "tests/unit/operations/shown_job.hpp"

using namespace torchup;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

/// As merge patches have it: what is null is not there.
json without_nulls(json value) {
  if (!value.is_object()) return value;
  for (auto member = value.begin(); member != value.end();) {
    if (member->is_null()) {
      member = value.erase(member);
      continue;
    }
    *member = without_nulls(*member);
    ++member;
  }
  return value;
}

}  // namespace

TEST_CASE("nothing changes where nothing has", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  JobView view = running({node("a", 0), node("b", 1)});
  page.show(view, at(0s));
  const std::uint64_t before = page.revision();
  page.show(view, at(1s));
  REQUIRE(page.revision() == before);
  view.last = "node b is silent";
  page.show(view, at(2s));
  REQUIRE(page.revision() > before);
}

TEST_CASE("texts are made in pieces, and only where something has changed", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  std::vector<JobView::Node> nodes;
  for (int i = 0; i < 10; ++i) nodes.push_back(node(std::to_string(i), i));
  page.show(running(nodes), at(0s));
  REQUIRE_FALSE(page.prepare(4));
  REQUIRE_FALSE(page.prepare(4));
  REQUIRE(page.prepare(2));
  page.show(running(nodes), at(1s));
  REQUIRE(page.prepare(0));
  page.report(NodeId{"3"}, report("rr", 1), TimePoint{});
  REQUIRE_FALSE(page.prepare(0));
  REQUIRE(page.prepare(1));
  page.report(NodeId{"3"}, report("rr", 1, 2000), TimePoint{});  // nothing that stands in its text
  REQUIRE(page.prepare(0));
  nodes.pop_back();
  page.report(NodeId{"9"}, report("rr", 1), TimePoint{});
  page.show(running(nodes), at(2s));  // it has gone before its text was made
  REQUIRE(page.prepare(0));
}

TEST_CASE("a change has the nodes that have changed, and of them what has", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  page.show(running({node("a", 0), node("b", 1)}), at(0s));
  static_cast<void>(snapshot(page));
  const std::uint64_t before = page.revision();
  page.report(NodeId{"b"}, report("rr", 5), TimePoint{});
  const json change = json::parse(*page.changes(Right::control, before, at(0s), 8));
  REQUIRE(change["nodes"] == json::parse(R"({"b": {"ranks": "rr", "step": 5}})"));
  REQUIRE_FALSE(change.contains("phase"));
  REQUIRE_FALSE(change.contains("incidents"));
  REQUIRE(change["seq"] == 8);
  const json nothing = json::parse(*page.changes(Right::control, page.revision(), at(1s), 8));
  REQUIRE(names(nothing) == std::set<std::string>{"now", "seq", "step"});
}

TEST_CASE("there is no change from what never was, or is too long ago", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  std::vector<JobView::Node> nodes;
  for (std::size_t i = 0; i <= gone_nodes_max; ++i) nodes.push_back(node(std::to_string(i), static_cast<int>(i)));
  page.show(running(nodes), at(0s));
  const std::uint64_t before = page.revision();
  REQUIRE_FALSE(page.changes(Right::control, before + 1, at(0s), 0));
  nodes.resize(1);  // as many as are remembered have gone
  page.show(running(nodes), at(1s));
  REQUIRE(page.changes(Right::control, before, at(1s), 0));
  page.show(running({}), at(2s));  // and one more
  REQUIRE_FALSE(page.changes(Right::control, before, at(2s), 0));
  REQUIRE(page.changes(Right::control, page.revision(), at(2s), 0));
}

TEST_CASE("changes from any revision make of its snapshot the newest", "[unit][job_page][many]") {
  std::mt19937 random{17};
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  JobPage page{RunId{"a"}, "head"};
  struct Reader {
    json seen;
    std::uint64_t revision;
  };
  std::vector<Reader> readers;
  std::uint64_t seq = 0;
  for (int turn = 0; turn < 400; ++turn) {
    const Moment now = at(1s * turn);
    switch (below(5)) {
      case 0: {
        std::vector<JobView::Node> nodes;
        for (int i = 0; i < 6; ++i) {
          if (below(3) > 0) nodes.push_back(node(std::to_string(i), i, below(2) ? "seated" : "silent"));
        }
        if (!nodes.empty() && below(2)) nodes.back().group_rank.reset();
        JobView view = running(std::move(nodes));
        if (below(6) == 0) view.phase = "ended";
        if (view.phase == "ended") view.verdict = Verdict{.exit_code = below(3), .reason = "over"};
        if (below(2)) view.waits_for = "node " + std::to_string(turn);
        page.show(view, now);
        break;
      }
      case 1:
        page.add_incident(++seq, R"({"message":"m","host":"h"})");
        break;
      case 2:
        page.set_name("program " + std::to_string(below(3)));
        break;
      default:
        page.report(NodeId{std::to_string(below(6))}, report(below(2) ? "rr" : "rw", below(3)), now.now);
    }
    const Right right = Right::control;
    if (below(4) == 0) {
      readers.push_back({without_nulls(json::parse(page.snapshot(right, now, seq))), page.revision()});
    }
    for (Reader& reader : readers) {
      if (below(3)) continue;
      reader.seen.merge_patch(json::parse(*page.changes(right, reader.revision, now, seq)));
      reader.revision = page.revision();
      REQUIRE(without_nulls(reader.seen) == without_nulls(json::parse(page.snapshot(right, now, seq))));
    }
  }
}
