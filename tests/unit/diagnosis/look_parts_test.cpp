#include "rendezvous/core/diagnosis/look_parts.hpp"

#include <catch2/catch.hpp>
#include <random>

#include "looks.hpp"
#include "rendezvous/core/diagnosis/hang_verdict.hpp"
#include "rendezvous/core/link/wire.hpp"

using namespace torchup;
using namespace torchup::looks;

namespace {

/// A look in which everything has a value of its own.
RankLook full_look() {
  RankLook look{.rank = Rank{3},
                .local_rank = LocalRank{1},
                .host = "nodeb",
                .pid = 4242,
                .seen = true,
                .state = 'D',
                .traced = true,
                .debugged = true,
                .moving = true,
                .progressed = true,
                .raised_ns = -5,
                .raised_consequence = true,
                .in_p2p = true,
                .kernel = "sleeping in read of /mnt/x",
                .frames = {{"read_shard", "data.py", 88}, {"main", "train.py", 41}},
                .native = {"read", "PyEval_EvalFrameDefault"},
                .groups_known = true,
                .groups_cut = true,
                .groups = {{"0", "default_pg", ranks("0-7,12-60:4"), 1234}, {"7", "", {}, -1}},
                .collectives = {call("0", 1234), call("7", 0, "gloo:barrier", -1, "")},
                .step = -8,
                .beats = 9};
  look.collectives[1].finished = true;
  look.collectives[1].point_to_point = true;
  look.collectives[1].peer = Rank{60};
  look.collectives[1].created_ns = -77;
  return look;
}

/// One that is larger than anything may be, in each of its parts.
RankLook huge_look(int rank) {
  RankLook look = in(still(rank), "0", "0-99", 5000);
  look.host = std::string(1000, 'h');
  look.kernel = std::string(1000, 'k');
  for (int i = 0; i < 100; ++i) {
    look.frames.push_back({std::string(300, 'f'), std::string(300, 'p'), i});
    look.native.push_back(std::string(300, 'n'));
    look.groups.push_back({"group " + std::to_string(i), "described", ranks("0-99"), i});
    look.collectives.push_back(call("0", i, "operation " + std::to_string(i)));
    look.collectives.back().finished = i % 2 == 0;
  }
  return look;
}

errc code_of(const Error& error) { return static_cast<errc>(error.code.value()); }

}  // namespace

TEST_CASE("a look is read as it was written", "[unit][diagnosis]") {
  REQUIRE(fitted(full_look()) == full_look());
  REQUIRE(decode_look(encode_look(full_look())).value() == full_look());
  REQUIRE(decode_look(encode_look(RankLook{})).value() == RankLook{});
}

TEST_CASE("what a later release adds to a look is passed over, what an earlier one lacks is refused",
          "[unit][diagnosis]") {
  REQUIRE(decode_look(encode_look(full_look()) + "later").value() == full_look());
  const std::string bytes = encode_look(full_look());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    REQUIRE(code_of(decode_look(std::string_view{bytes}.substr(0, length)).error()) == errc::bad_frame);
  }
}

TEST_CASE("a look is no longer than its limit, and its outer frames go before its calls", "[unit][diagnosis]") {
  const RankLook small = fitted(huge_look(3));
  REQUIRE(encode_look(small).size() <= look_bytes_max);
  const RankLook read = decode_look(encode_look(small)).value();
  REQUIRE(read.groups_cut);
  REQUIRE(read.groups.front().name == "0");
  REQUIRE(read.groups.front().number == 5000);
  REQUIRE_FALSE(read.collectives.empty());
  REQUIRE_FALSE(read.collectives.front().finished);
  REQUIRE(read.native.empty());

  // What is finished goes, newest last, and the stack a page shows stays.
  RankLook with_history = full_look();
  with_history.collectives.clear();
  for (int i = 0; i < 64; ++i) {
    with_history.collectives.push_back(call("0", i));
    with_history.collectives.back().finished = i != 0;
    with_history.collectives.back().created_ns = i;
  }
  const RankLook cut = fitted(with_history);
  REQUIRE(encode_look(cut).size() <= look_bytes_max);
  REQUIRE(cut.frames == with_history.frames);
  REQUIRE(cut.groups == with_history.groups);
  REQUIRE(cut.collectives.size() > 10);
  REQUIRE(cut.collectives.front().number == 0);
  REQUIRE(cut.collectives[1].number == 63);
}

TEST_CASE("a look is no longer than its limit whatever its texts are", "[unit][diagnosis]") {
  const std::string group(look_group_bytes_max, 'g');
  RankLook look = in(still(3), group, "0-99", 5000);
  look.raised_ns = 1;
  look.host = std::string(look_host_bytes_max, 'h');
  look.groups[0].description = std::string(look_group_bytes_max, 'd');
  for (int i = 1; i < static_cast<int>(look_collectives_max); ++i) {
    const auto text = [&](std::size_t bytes) { return std::string(bytes - 2, 'x') + std::to_string(10 + i); };
    look.collectives.push_back(call(text(look_group_bytes_max), i, text(look_operation_bytes_max), 7));
    look.collectives.back().peer = Rank{4};
    look.collectives.back().sizes = text(look_sizes_bytes_max);
    look.collectives.back().dtype = text(look_dtype_bytes_max);
  }
  look.collectives[0] = look.collectives[1];
  look.collectives[0].group = group;
  look.collectives[0].operation.back() = look.collectives[0].sizes.back() = look.collectives[0].dtype.back() = '!';
  const RankLook cut = fitted(look);
  REQUIRE(encode_look(cut).size() <= look_bytes_max);
  REQUIRE(decode_look(encode_look(cut)).value() == cut);
  REQUIRE(cut.collectives.size() >= 4);
  REQUIRE(cut.groups.front().number == 5000);
  REQUIRE(unpack_looks(pack_looks(std::vector{look}).front()).value() == std::vector{cut});
}

TEST_CASE("a look that cannot be read takes no other with it", "[unit][diagnosis]") {
  const auto framed = [](const std::string& bytes) {
    wire::Writer writer;
    writer(static_cast<std::uint32_t>(bytes.size()));
    return writer.take() + bytes;
  };
  const std::string part = pack_looks(std::vector{still(1)}).front() + framed("bad") + framed(encode_look(still(2)));
  REQUIRE(unpack_looks(part).value() == std::vector{still(1), still(2)});
}

TEST_CASE("a look is read at its limits and refused beyond them", "[unit][diagnosis]") {
  std::string bytes = encode_look(full_look());
  bytes.resize(look_bytes_max);
  REQUIRE(decode_look(bytes).has_value());
  bytes.push_back('\0');
  REQUIRE(code_of(decode_look(bytes).error()) == errc::limit_exceeded);

  // Counts that are larger than their lists, or than any memory. The rank is the first number, the host's length the
  // third.
  wire::Writer writer;
  writer(std::int32_t{0}, std::int32_t{0}, std::uint32_t{0xffffffff});
  REQUIRE(code_of(decode_look(writer.take()).error()) == errc::limit_exceeded);
  for (const std::int32_t rank : {-1, world_size_max}) {
    wire::Writer wrong;
    wrong(rank);
    REQUIRE(decode_look(wrong.take() + encode_look(full_look()).substr(4)).has_error());
  }
}

TEST_CASE("of many groups that in which somebody waits is told whole", "[unit][diagnosis]") {
  // A hundred groups of two ranks; one is in a call of the ninetieth, and the other has not come.
  std::vector<RankLook> looks;
  for (int rank = 0; rank < 2; ++rank) {
    RankLook look = rank == 0 ? in(still(0), "90", "0-1", 2) : still(1);
    for (int i = 0; i < 100 && look.groups.size() < look_groups_max; ++i) {
      if (i != 90) look = at(std::move(look), std::to_string(i), "0-1", 1);
    }
    look.groups_cut = true;
    for (int i = 0; i < 6; ++i) look.frames.push_back({"function", "/some/folder/of/a/program/train.py", i});
    looks.push_back(fitted(look));
    REQUIRE(encode_look(looks.back()).size() <= look_bytes_max);
  }
  REQUIRE(looks[0].groups.front() == GroupPosition{"90", "90_pg", ranks("0-1"), 2});
  REQUIRE(looks[0].frames.size() >= 2);
  REQUIRE(looks[1].groups.size() > 32);
  const HangVerdict verdict = judge_hang(2, looks);
  REQUIRE(verdict.kind == HangKind::stuck);
  REQUIRE(verdict.culprits == list({1}));
  REQUIRE(verdict.collective->missing == ranks("1"));
}

TEST_CASE("members that take too many stretches are not told, and never half of them", "[unit][diagnosis]") {
  std::string text;
  for (int i = 2; i < 65; ++i) text += "," + std::to_string(1'000'000 + i * i);  // 63 times eight bytes
  RankLook look = still(3);
  look.groups.push_back({"0", "", ranks("100,2000" + text), 5});
  REQUIRE(to_text(look.groups[0].ranks).size() == look_ranks_bytes_max);
  REQUIRE(decode_look(encode_look(look)).value() == look);
  look.groups[0].ranks = ranks("100,20000" + text);
  REQUIRE(to_text(look.groups[0].ranks).size() == look_ranks_bytes_max + 1);
  REQUIRE(decode_look(encode_look(look)).value().groups[0] == GroupPosition{"0", "", {}, 5});
}

TEST_CASE("whatever lies in a part, it is read or refused", "[unit][diagnosis]") {
  const std::string good = pack_looks(std::vector{full_look(), huge_look(4), still(5)}).front();
  std::mt19937 chance{11};
  int read = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    std::string bytes = good;
    for (auto count = 1 + chance() % 6; count > 0; --count) {
      bytes[chance() % bytes.size()] = static_cast<char>(chance() % 256);
    }
    if (chance() % 4 == 0) bytes.resize(chance() % bytes.size());
    const auto looks = unpack_looks(bytes);
    if (!looks) continue;
    ++read;
    for (const RankLook& look : *looks) {
      REQUIRE(look.frames.size() <= look_frames_max);
      REQUIRE(look.groups.size() <= look_groups_max);
      REQUIRE(look.collectives.size() <= look_collectives_max);
      REQUIRE(look.kernel.size() <= look_kernel_bytes_max);
      // What was read can be told on.
      REQUIRE(decode_look(encode_look(fitted(look))).has_value());
    }
  }
  REQUIRE(read > 100);
}

TEST_CASE("a node's looks travel in parts of a frame's size", "[unit][diagnosis]") {
  REQUIRE(pack_looks({}) == std::vector<std::string>{""});
  std::vector<RankLook> looks;
  const RankLook large = fitted(huge_look(0));
  for (int rank = 0; rank < 300; ++rank) {
    looks.push_back(large);
    looks.back().rank = Rank{rank};
  }
  const auto parts = pack_looks(looks);
  REQUIRE(parts.size() == 3);
  int rank = 0;
  for (const std::string& part : parts) {
    REQUIRE(part.size() <= look_part_bytes_max);
    for (const RankLook& look : unpack_looks(part).value()) REQUIRE(look == looks[static_cast<std::size_t>(rank++)]);
  }
  REQUIRE(rank == 300);
  REQUIRE(split_part(std::string(look_part_bytes_max, '\0')).has_value());
  REQUIRE(code_of(split_part(std::string(look_part_bytes_max + 1, '\0')).error()) == errc::limit_exceeded);
  using namespace std::string_view_literals;
  REQUIRE(code_of(split_part("\x01\x08\0\0"sv).error()) == errc::limit_exceeded);
  REQUIRE(code_of(split_part("\x02\0\0\0x"sv).error()) == errc::bad_frame);
  REQUIRE(code_of(split_part("\x02\0\0"sv).error()) == errc::bad_frame);
}
