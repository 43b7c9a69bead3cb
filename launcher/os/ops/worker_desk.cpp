#include "launcher/os/ops/worker_desk.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>

namespace torchup {
namespace {

/// How often somebody who waits for more is looked for more.
constexpr Duration log_look_interval = std::chrono::milliseconds{200};
constexpr Duration log_read_limit = std::chrono::seconds{5};
/// Who follows a log asks again that soon.
constexpr Duration comes_again = std::chrono::milliseconds{500};
/// Where a rank is not now, nobody waits longer for more of its log: it may be on another node meanwhile.
constexpr Duration away_wait_max = std::chrono::seconds{1};

/// Not 0, which is none.
std::uint64_t random_number() {
  std::random_device device;
  return std::uint64_t{device()} << 32U | device() | 1U;
}

OutputTail::Stream tail_stream(LogStream stream) {
  return stream == LogStream::out ? OutputTail::Stream::out : OutputTail::Stream::err;
}

/// What stands in these files one after the other from `begin` on. One that is not there, or is no plain file any more,
/// is empty.
LogPart read_part(const std::vector<std::string>& paths, std::uint64_t begin) {
  std::string part;
  std::uint64_t offset = begin;
  for (const std::string& path : paths) {
    const UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    struct stat status {};
    if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (offset >= size) {
      offset -= size;
      continue;
    }
    const std::size_t before = part.size();
    part.resize(before + std::min<std::uint64_t>(size - offset, log_part_bytes_max - before));
    ssize_t count = -1;
    do {
      count = ::pread(file.get(), part.data() + before, part.size() - before, static_cast<off_t>(offset));
    } while (count < 0 && errno == EINTR);
    part.resize(before + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    offset = 0;
    if (part.size() == log_part_bytes_max) break;
  }
  // Where it ends before `begin`, what is left of that is how far it is behind.
  const std::uint64_t next = part.empty() ? begin - offset : begin + part.size();
  return {.bytes = std::move(part), .next = next};
}

bool has_place(const AttemptRecord& attempt, Rank rank) {
  return std::ranges::any_of(attempt.workers, [&](const WorkerRecord& worker) { return worker.worker.rank == rank; });
}

}  // namespace

WorkerDesk::WorkerDesk(asio::io_context& loop, DiskThread& disk, Hooks hooks)
    : loop_{loop}, disk_{disk}, hooks_{std::move(hooks)}, log_{random_number()} {}

bool WorkerDesk::has(Rank rank) const {
  return std::ranges::any_of(hooks_.record().attempts(),
                             [&](const AttemptRecord& attempt) { return has_place(attempt, rank); });
}

bool WorkerDesk::has_now(Rank rank) const {
  const auto& attempts = hooks_.record().attempts();
  if (attempts.empty()) return false;
  // A node that is drained or stands by has had its last attempt, and the others go on.
  const bool is_newest = attempts.back().end_us == 0 || job_over_;
  return is_newest && has_place(attempts.back(), rank);
}

void WorkerDesk::perform(const OpsCall& call, HttpServer::Reply reply) {
  if (call.route == OpsRoute::stacks) return give_stacks(call, reply);
  if (!call.rank || !has(*call.rank)) return reply(answer_of(no_such_rank(call.rank.value_or(Rank{0}))));
  spawn(loop_, "a worker's log", give_log(call, std::move(reply)));
}

// ---- logs

/// Those that its workers of all attempts have written, oldest first.
std::vector<std::string> WorkerDesk::files_of(const Place& place) const {
  std::vector<std::string> paths;
  for (const AttemptRecord& attempt : hooks_.record().attempts()) {
    for (const WorkerRecord& worker : attempt.workers) {
      if (worker.worker.rank != place.first) continue;
      const std::string& path = place.second == LogStream::out ? worker.stdout_log : worker.stderr_log;
      if (!path.empty()) paths.push_back(path);
    }
  }
  return paths;
}

/// What memory has of it, of all attempts.
OutputTail::Kept WorkerDesk::memory_of(const Place& place) const {
  OutputTail::Kept kept;
  if (const auto past = past_.find(place); past != past_.end()) kept = past->second;
  const AttemptOutput* const attempt = hooks_.attempt();
  const auto& attempts = hooks_.record().attempts();
  if (over_ || !attempt || attempts.empty()) return kept;
  for (const WorkerRecord& worker : attempts.back().workers) {
    if (worker.worker.rank != place.first) continue;
    const OutputTail::Kept now = attempt->kept(worker.worker.local_rank, tail_stream(place.second));
    // Where its beginning is forgotten, nothing before it is shown: there would be a hole.
    kept.bytes = now.bytes.size() == now.end ? kept.bytes + now.bytes : now.bytes;
    kept.end += now.end;
  }
  kept.bytes.erase(0, kept.bytes.size() - std::min(kept.bytes.size(), tail_bytes_max));
  return kept;
}

void WorkerDesk::attempt_ended() {
  const auto& attempts = hooks_.record().attempts();
  if (over_ || attempts.empty()) return;
  for (const WorkerRecord& worker : attempts.back().workers) {
    for (const LogStream stream : {LogStream::out, LogStream::err}) {
      const Place place{worker.worker.rank, stream};
      const bool has_file = !(stream == LogStream::out ? worker.stdout_log : worker.stderr_log).empty();
      if (!has_file) past_[place] = memory_of(place);
    }
  }
  over_ = true;
  wake_waiting();
}

void WorkerDesk::job_ended() {
  job_over_ = true;
  wake_waiting();
}

bool WorkerDesk::is_followed() const {
  return unanswered_ > 0 || std::chrono::steady_clock::now() < comes_again_until_;
}

void WorkerDesk::wake_waiting() {
  for (Timer* const pause : waiting_) pause->cancel();
}

Task<std::optional<LogPart>> WorkerDesk::log_part(Place place, std::uint64_t offset) {
  std::vector<std::string> paths = files_of(place);
  if (paths.empty()) {
    const OutputTail::Kept kept = memory_of(place);
    const std::uint64_t begin = kept.end - kept.bytes.size();
    const std::uint64_t from = std::clamp(offset, begin, kept.end);
    LogPart part{.bytes = kept.bytes.substr(from - begin), .next = kept.end, .from_memory = true};
    co_return part;
  }
  std::function<LogPart()> work = [paths = std::move(paths), offset] { return read_part(paths, offset); };
  std::optional<LogPart> part = co_await disk_.ask(std::move(work), log_read_limit);
  co_return part;
}

OpsAnswer WorkerDesk::log_answer(std::optional<LogPart> part) const {
  if (!part) return answer_of({503, "disk", "The disk with the log does not answer", ""});
  OpsAnswer answer{.content_type = bytes_content, .body = std::move(part->bytes)};
  answer.headers.emplace_back(offset_header, std::to_string(part->next));
  answer.headers.emplace_back(log_header, std::to_string(log_));
  if (part->from_memory) answer.headers.emplace_back(source_header, source_memory);
  return answer;
}

Task<> WorkerDesk::give_log(OpsCall call, HttpServer::Reply reply) {
  const TimePoint begin = std::chrono::steady_clock::now();
  const Place place{*call.rank, call.stream};
  if (call.log != 0 && call.log != log_) {  // he has read another node's: he is to say what he has of this one
    reply(log_answer(LogPart{}));
    co_return;
  }
  Timer pause{loop_};
  ++unanswered_;
  while (true) {
    const bool is_whole = job_over_;  // before it is read: while it is, more may be written
    std::optional<LogPart> part = co_await log_part(place, call.offset);
    const TimePoint now = std::chrono::steady_clock::now();
    const bool was_cut = part && part->next < call.offset;
    const Duration wait = has_now(place.first) ? call.wait : std::min<Duration>(call.wait, away_wait_max);
    if (!part || !part->bytes.empty() || was_cut || is_whole || now >= begin + wait) {
      if (!is_whole && call.wait > Duration{0}) comes_again_until_ = now + comes_again;
      --unanswered_;
      reply(log_answer(std::move(part)));
      co_return;
    }
    if (job_over_) continue;
    pause.expires_after(log_look_interval);
    const auto place_among = waiting_.insert(waiting_.end(), &pause);
    co_await pause.async_wait();
    waiting_.erase(place_among);
  }
}

// ---- stacks

void WorkerDesk::give_stacks(const OpsCall& call, const HttpServer::Reply& reply) {
  const auto& attempts = hooks_.record().attempts();
  std::vector<Rank> ranks;
  std::vector<LocalRank> living;
  if (!attempts.empty()) {
    for (const WorkerRecord& worker : attempts.back().workers) {
      if (call.rank && worker.worker.rank != *call.rank) continue;
      ranks.push_back(worker.worker.rank);
      if (!worker.exit_code) living.push_back(worker.worker.local_rank);
    }
  }
  if (ranks.empty() && call.rank) return reply(answer_of(no_such_rank(*call.rank)));
  if (ranks.empty()) return reply(answer_of({409, "no_round", "No worker has a place in the job now", ""}));
  const auto looked =
      hooks_.look(living, call.native,
                  [this, ranks, reply](const std::vector<RankLook>& looks, const std::vector<RankStacks>& stacks) {
                    reply(stacks_answer(ranks, looks, stacks));
                  });
  if (!looked) reply(answer_of({503, "busy", looked.error().message(), ""}));
}

OpsAnswer WorkerDesk::stacks_answer(const std::vector<Rank>& wanted, const std::vector<RankLook>& looks,
                                    const std::vector<RankStacks>& stacks) const {
  const AttemptOutput* const attempt = hooks_.attempt();
  const TimePoint now = std::chrono::steady_clock::now();
  std::vector<Duration> quiet;
  for (const RankLook& look : looks) {
    quiet.push_back(attempt ? std::max(Duration{0}, now - attempt->last_output(look.local_rank)) : Duration{0});
  }
  OpsAnswer answer{.content_type = text_content, .body = stacks_text(looks, stacks, quiet)};
  for (const Rank rank : wanted) {
    if (std::ranges::find(looks, rank, &RankLook::rank) != looks.end()) continue;
    answer.body += fmt::format("rank {} does not run now\n", rank.value());
  }
  return answer;
}

}  // namespace torchup
