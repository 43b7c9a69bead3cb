#include "rendezvous/core/diagnosis/told_parts.hpp"

#include <catch2/catch.hpp>
#include <random>

#include "looks.hpp"
#include "rendezvous/core/diagnosis/look_parts.hpp"

using namespace torchup;
using namespace torchup::looks;
using namespace std::chrono_literals;

namespace {

/// What a reader makes of it.
std::optional<DiagnosisNews> through(const DiagnosisNews& news) {
  NewsReader reader;
  std::optional<DiagnosisNews> read;
  const auto parts = encode_news(news);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    REQUIRE_FALSE(read.has_value());
    REQUIRE(parts[i].size() <= diagnosis_part_bytes_max);
    auto added = reader.add(parts[i], i + 1 == parts.size());
    if (!added) FAIL(added.error().message());
    read = std::move(*added);
  }
  return read;
}

AwaitedCollective full_collective() {
  const OperationSide side{.ranks = ranks("0-2"),
                           .operation = "all_reduce",
                           .sizes = "[1024]",
                           .elements = 1024,
                           .dtype = "float32",
                           .bytes = 4096};
  return {.group = "0",
          .description = "default_pg",
          .number = 1234,
          .point_to_point = true,
          .operation = "all_reduce",
          .sizes = "[1024]",
          .elements = 1024,
          .dtype = "float32",
          .bytes = 4096,
          .missing = ranks("3"),
          .waiting = ranks("0-2,8-14:2"),
          .operations = {side, side}};
}
hang::Found full_found() {
  return {.number = 7,
          .asked = true,
          .verdict = HangVerdict{.kind = HangKind::mismatch,
                                 .culprits = list({3, 5}),
                                 .collective = full_collective(),
                                 .last_step = 1233,
                                 .unseen = ranks("6")},
          .silence = 64s,
          .action = HangAction::restart,
          .spared = HangSpared::doubtful,
          .ended = list({3, 5}),
          .looks = {in(still(2), "0", "0-3", 1234), moving(3)}};
}

}  // namespace

TEST_CASE("news come back as they were", "[unit][diagnosis]") {
  const StragglerFound found{.rank = Rank{3},
                             .host = "nodeb",
                             .share_percent = 21,
                             .late_ms = 31.25,
                             .step_ms = 142.000001,
                             .last_percent = 92,
                             .operation = "all_reduce",
                             .count = 256,
                             .bytes = 4 << 20,
                             .cpu_side = true};
  const std::vector<DiagnosisNews> all{full_found(),   hang::Found{},    hang::Over{3, 182s},
                                       found,          StragglerFound{}, StragglerOver{Rank{3}, "nodeb"},
                                       StragglerOver{}};
  for (const DiagnosisNews& news : all) {
    INFO("alternative " << news.index());
    REQUIRE(through(news) == news);
  }
}

TEST_CASE("a page of as many looks as there may be comes in parts", "[unit][diagnosis]") {
  hang::Found found = full_found();
  found.looks.clear();
  for (int rank = 0; rank < static_cast<int>(told_looks_max) + 1; ++rank) {
    RankLook look = still(rank);
    for (int i = 0; i < 16; ++i) look.frames.push_back({std::string(100, 'f'), "train.py", i});
    found.looks.push_back(fitted(look));
  }
  const auto read = through(found);
  REQUIRE(encode_news(found).size() > 3);
  found.looks.pop_back();  // one beyond
  REQUIRE(read == DiagnosisNews{found});
}

TEST_CASE("a verdict is read though a look that comes with it cannot be", "[unit][diagnosis]") {
  hang::Found found = full_found();
  std::string news = encode_news(found).front();
  const std::string look = encode_look(found.looks[0]);
  const auto at = news.find(look);
  REQUIRE(at != std::string::npos);
  news.replace(at, 4, 4, '\xff');  // its rank
  NewsReader reader;
  found.looks.erase(found.looks.begin());
  REQUIRE(reader.add(news, true).value() == DiagnosisNews{found});
}

TEST_CASE("the largest news are within their limit", "[unit][diagnosis]") {
  const std::string scattered = [] {
    std::string text;
    for (int i = 0; i < static_cast<int>(rank_runs_max); ++i)
      text += (i > 0 ? "," : "") + std::to_string(9'000'000 + i * 5) + "-" + std::to_string(9'000'002 + i * 5) + ":2";
    return text;
  }();
  hang::Found found = full_found();
  HangVerdict& verdict = *found.verdict;
  AwaitedCollective& call = *verdict.collective;
  call.missing = call.waiting = verdict.unseen = ranks(scattered);
  call.operations.assign(2 * sides_told_max, {.ranks = ranks(scattered)});
  verdict.culprits.clear();
  for (int rank = 0; rank < 4000; rank += 2 + rank % 4 / 2) verdict.culprits.emplace_back(rank);
  found.ended = verdict.culprits;
  RankLook largest = still(0);
  while (encode_look(largest).size() <= look_bytes_max) {
    largest.frames.push_back({std::string(look_function_bytes_max, 'f'), std::string(look_file_bytes_max, 'f'), 1});
  }
  found.looks.assign(told_looks_max, fitted(largest));
  const auto parts = encode_news(found);
  REQUIRE((parts.size() - 1) * diagnosis_part_bytes_max + parts.back().size() <= news_bytes_max);
  const auto read = through(found);
  REQUIRE(read.has_value());
  const auto& told = *std::get<hang::Found>(*read).verdict;
  // Of too many stretches the first.
  REQUIRE(to_text(ranks(scattered)).starts_with(to_text(told.unseen)));
  REQUIRE(told.unseen.runs().size() > 500);
  REQUIRE(told.collective->operations.size() == sides_told_max);
}

TEST_CASE("parts of which the beginning was lost are passed over", "[unit][diagnosis]") {
  hang::Found found = full_found();
  found.looks.assign(600, fitted(still(0)));
  for (RankLook& look : found.looks) look.frames.assign(6, {std::string(100, 'f'), std::string(150, 'p'), 1});
  const auto parts = encode_news(found);
  REQUIRE(parts.size() >= 3);
  const auto nothing = [](const Result<std::optional<DiagnosisNews>>& read) { return read && !read->has_value(); };
  NewsReader reader;
  SECTION("the first") {
    for (std::size_t i = 1; i < parts.size(); ++i) REQUIRE(nothing(reader.add(parts[i], i + 1 == parts.size())));
  }
  SECTION("one in the middle") {
    REQUIRE(nothing(reader.add(parts[0], false)));
    for (std::size_t i = 2; i < parts.size(); ++i) REQUIRE(nothing(reader.add(parts[i], i + 1 == parts.size())));
  }
  SECTION("the last, with the line, and others come by the next one") { REQUIRE(nothing(reader.add(parts[0], false))); }
  const hang::Over over{3, 182s};
  REQUIRE(reader.add(encode_news(over).front(), true).value() == DiagnosisNews{over});
}

TEST_CASE("news that are no news are refused, and what follows is read", "[unit][diagnosis]") {
  NewsReader reader;
  const auto error_of = [&](const std::string& part, bool last = true) {
    const auto read = reader.add(part, last);
    return read ? std::string{"none"} : read.error().context;
  };
  const std::string first(4, '\0');
  REQUIRE(error_of("") == "a part of news says nothing");
  REQUIRE(error_of("abc") == "a part of news says nothing");
  REQUIRE(error_of(first) == "news without a kind");
  REQUIRE(error_of(first + "\x01") == "a frame is shorter than its fields");
  REQUIRE(error_of(first + "\x04 whatever") == "none");  // only a newer release knows it
  REQUIRE(error_of(first + std::string(diagnosis_part_bytes_max - 4, '\x04')) == "none");
  REQUIRE(error_of(first + std::string(diagnosis_part_bytes_max - 3, '\x04')) == "news are too long");
  const std::string room(diagnosis_part_bytes_max - 4, '\x04');
  std::size_t taken = 0;
  for (char place = 0; taken + room.size() <= news_bytes_max; ++place, taken += room.size()) {
    REQUIRE(error_of(std::string{place} + std::string(3, '\0') + room, false) == "none");
  }
  const std::string next = std::string{static_cast<char>(taken / room.size())} + std::string(3, '\0');
  SECTION("as much as there may be") { REQUIRE(error_of(next + room.substr(0, news_bytes_max - taken)) == "none"); }
  SECTION("one more") { REQUIRE(error_of(next + room.substr(0, news_bytes_max - taken + 1)) == "news are too long"); }
  REQUIRE(reader.add(encode_news(hang::Over{}).front(), true).value() == DiagnosisNews{hang::Over{}});
}

TEST_CASE("a window comes back as it was, and what is too much is cut", "[unit][diagnosis]") {
  ToldWindow window{.number = 9,
                    .clock_error = 40us,
                    .worst = Lateness{.signature = {"0", "gloo:all_reduce", 1024},
                                      .dtype = "Float",
                                      .rank = Rank{3},
                                      .count = 256,
                                      .last = 240,
                                      .late = -31ms,
                                      .period = 142ms,
                                      .cpu_side = true},
                    .told = {{.signature = {"0", "gloo:all_reduce", 1024},
                              .dtype = "Float",
                              .only_rank = Rank{3},
                              .period = 142ms,
                              .numbers = {{1, -5}, {2, 1'000'000}}}},
                    .late_ranks = {{Rank{3}, 31ms}, {Rank{2}, -31ms}}};
  REQUIRE(decode_window(encode_window(window)).value() == window);
  REQUIRE(decode_window(encode_window({})).value() == ToldWindow{});

  window.told.assign(told_signatures_max + 1, window.told.front());
  window.told.front().numbers.assign(told_numbers_max + 1, {1, 1});
  window.late_ranks.assign(late_ranks_told_max + 1, {Rank{1}, 1ms});
  const std::string largest = encode_window(window);
  REQUIRE(largest.size() <= diagnosis_part_bytes_max);
  const auto read = decode_window(largest).value();
  REQUIRE(read.told.size() == told_signatures_max);
  REQUIRE(read.told.front().numbers.size() == told_numbers_max);
  REQUIRE(read.late_ranks.size() == late_ranks_told_max);

  REQUIRE(decode_window(std::string(diagnosis_part_bytes_max + 1, '\0')).error().code ==
          make_error_code(errc::limit_exceeded));
  for (std::size_t length = 0; length < 40; ++length) {
    REQUIRE_FALSE(decode_window(std::string_view{largest}.substr(0, length)).has_value());
  }
}

TEST_CASE("a node tells of its window the latest ranks", "[unit][diagnosis]") {
  LatenessWindow window{.worst = Lateness{.rank = Rank{0}}};
  for (int rank = 0; rank <= static_cast<int>(late_ranks_told_max); ++rank) {
    window.ranks.push_back({.rank = Rank{rank}, .late = rank * 1ms});
  }
  const ToldWindow told = told_window(4, window, {.error = 3ms}, {});
  REQUIRE(told.number == 4);
  REQUIRE(told.clock_error == 3ms);
  REQUIRE(told.worst == window.worst);
  REQUIRE(told.late_ranks.size() == late_ranks_told_max);
  REQUIRE(told.late_ranks.front().rank == Rank{static_cast<int>(late_ranks_told_max)});
  REQUIRE(told.late_ranks.back().rank == Rank{1});
}

TEST_CASE("in brief a verdict takes 4 KiB at most, and looks at culprits what room there is", "[unit][diagnosis]") {
  const auto bytes_of = [](const hang::Found& found) { return encode_news(found).front().size(); };
  hang::Found found = full_found();
  HangVerdict& verdict = *found.verdict;
  AwaitedCollective& call = *verdict.collective;
  std::vector<Rank> scattered;
  for (int rank = 0; rank < 4000; rank += 2 + rank % 4 / 2) scattered.emplace_back(rank);
  call.missing = call.waiting = verdict.unseen = RankSet{scattered};
  call.group = call.description = std::string(look_group_bytes_max, 'g');
  call.operation = std::string(look_operation_bytes_max, 'o');
  call.sizes = std::string(look_sizes_bytes_max, 's');
  call.dtype = std::string(look_dtype_bytes_max, 'd');
  call.operations.assign(sides_told_max, {RankSet{scattered}, call.operation, call.sizes, 1, call.dtype, 1});
  verdict.culprits = found.ended = scattered;
  found.looks.clear();
  for (int rank = 0; rank < 300; ++rank) {
    RankLook look = in(still(rank), "0", "0-3", 7);
    look.frames.assign(6, {std::string(20, 'f'), std::string(20, 'p'), 1});
    found.looks.push_back(look);
  }
  const hang::Found least = in_brief(found, 0);
  REQUIRE(bytes_of(least) <= 4096);
  REQUIRE(least.looks.empty());
  REQUIRE(least.ended.empty());
  REQUIRE(least.verdict->culprits.size() < scattered.size());
  REQUIRE(std::ranges::equal(least.verdict->culprits, std::span{scattered}.first(least.verdict->culprits.size())));

  const hang::Found brief = in_brief(found, 8192);
  REQUIRE(bytes_of(brief) <= 8192);
  REQUIRE(brief.looks.size() > 3);
  REQUIRE(brief.looks.front().frames.size() == 6);
  REQUIRE(brief.looks.front().collectives.empty());

  const hang::Found told = told_to({NodeId{"b"}, "nodeb", Rank{100}, 4}, brief, found);
  REQUIRE(told.looks.size() == brief.looks.size() + 4);
  REQUIRE(std::ranges::is_sorted(told.looks, {}, &RankLook::rank));
  REQUIRE(told.looks.back() == found.looks.at(103));
  REQUIRE(std::ranges::all_of(told.ended, [](Rank rank) { return rank >= Rank{100} && rank < Rank{104}; }));
  REQUIRE_FALSE(told.ended.empty());
  // A culprit's own node has the whole look.
  REQUIRE(told_to({NodeId{"a"}, "nodea", Rank{0}, 1}, brief, found).looks.front() == found.looks.front());
}

TEST_CASE("where not all looks have room, those at culprits are told, then the lowest ranks'", "[unit][diagnosis]") {
  hang::Found found = full_found();
  found.verdict->culprits = list({70, 90});
  found.looks.clear();
  for (int rank = 0; rank < 100; ++rank) {
    RankLook look = in(still(rank), "0", "0-99", 7);
    look.frames.assign(6, {std::string(100, 'f'), std::string(100, 'p'), 1});
    found.looks.push_back(look);
  }
  const std::size_t all = told_bytes(encode_news(found)), one = encode_look(found.looks[0]).size();
  REQUIRE(with_fewer_looks(found, all) == found);
  const hang::Found some = with_fewer_looks(found, all / 2);
  REQUIRE(told_bytes(encode_news(some)) <= all / 2);
  REQUIRE(told_bytes(encode_news(some)) + one + 8 > all / 2);
  REQUIRE(some.verdict == found.verdict);
  std::vector<int> numbers;
  for (const RankLook& look : some.looks) numbers.push_back(look.rank.value());
  for (std::size_t i = 0; i + 2 < numbers.size(); ++i) REQUIRE(numbers[i] == static_cast<int>(i));
  REQUIRE(numbers[numbers.size() - 2] == 70);
  REQUIRE(numbers.back() == 90);
}

TEST_CASE("random bytes never crash the readers of told parts", "[unit][diagnosis]") {
  std::mt19937 random{11};
  const std::string news = encode_news(full_found()).front();
  const std::string window = encode_window({.worst = Lateness{}, .told = {{}}});
  int understood = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = news;
    for (int flips = 0; flips < 2; ++flips) bytes[4 + random() % (bytes.size() - 4)] = static_cast<char>(random());
    NewsReader reader;
    if (reader.add(bytes, true)) ++understood;
    bytes = window;
    bytes[random() % bytes.size()] = static_cast<char>(random());
    if (decode_window(bytes)) ++understood;
  }
  REQUIRE(understood > 1000);
}
