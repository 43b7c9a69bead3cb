// Both ends of a measurement of teed output.
//
//   tee_probe write LINES [PER_SECOND]   as a worker: lines of 100 bytes, one write each, with rank, number and time
//   tee_probe read RANKS LINES           reads prefixed lines from stdin; checks that none is lost, torn or out of
//   order
//                                        and prints, as JSON, how long they took to get here and the writers' CPU time
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t line_bytes = 100;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

/// Of this process.
std::int64_t cpu_us() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1'000'000 + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

int write_lines(long lines, long per_second) {
  const char* rank = std::getenv("RANK");
  const auto begin = Clock::now();
  std::array<char, line_bytes + 1> line{};
  for (long number = 0; number < lines; ++number) {
    if (per_second > 0) std::this_thread::sleep_until(begin + std::chrono::seconds{1} * number / per_second);
    const std::int64_t cpu = number + 1 == lines ? cpu_us() : 0;
    const int used = std::snprintf(line.data(), line.size(), "rank %s line %ld time %lld cpu %lld ", rank, number,
                                   static_cast<long long>(now_ns()), static_cast<long long>(cpu));
    std::fill(line.begin() + used, line.begin() + line_bytes - 1, '.');
    line[line_bytes - 1] = '\n';
    if (::write(STDOUT_FILENO, line.data(), line_bytes) != static_cast<ssize_t>(line_bytes)) return 1;
  }
  return 0;
}

/// Takes the number behind `word` from the front of `text`.
bool take(std::string_view& text, std::string_view word, std::int64_t& number) {
  const auto at = text.find(word);
  if (at == std::string_view::npos) return false;
  text.remove_prefix(at + word.size());
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

int read_lines(std::size_t ranks, std::int64_t lines) {
  std::vector<std::int64_t> next(ranks, 0);
  std::vector<std::int64_t> delays;
  delays.reserve(ranks * static_cast<std::size_t>(lines));
  std::vector<char> buffer(1 << 20);
  std::size_t held = 0;
  std::size_t wrong = 0;
  std::int64_t writers_cpu_us = 0;
  for (;;) {
    const ssize_t count = ::read(STDIN_FILENO, buffer.data() + held, buffer.size() - held);
    if (count <= 0) break;
    const std::int64_t now = now_ns();
    std::string_view text{buffer.data(), held + static_cast<std::size_t>(count)};
    for (auto end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
      std::string_view line = text.substr(0, end);
      text.remove_prefix(end + 1);
      std::int64_t rank = -1;
      std::int64_t number = -1;
      std::int64_t time = 0;
      std::int64_t cpu = 0;
      const std::size_t prefix = std::min(line.find("rank "), line.size());
      const bool whole = line.size() - prefix == line_bytes - 1 && take(line, "rank ", rank) &&
                         take(line, "line ", number) && take(line, "time ", time) && take(line, "cpu ", cpu);
      if (!whole || rank < 0 || rank >= static_cast<std::int64_t>(ranks) ||
          next[static_cast<std::size_t>(rank)]++ != number) {
        ++wrong;
        continue;
      }
      delays.push_back(now - time);
      writers_cpu_us += cpu;
    }
    held = text.size();
    std::copy(text.begin(), text.end(), buffer.begin());
  }
  if (delays.empty()) return 1;
  std::sort(delays.begin(), delays.end());
  const auto quantile = [&](double part) {
    return static_cast<double>(delays[static_cast<std::size_t>(part * static_cast<double>(delays.size() - 1))]) / 1e6;
  };
  std::printf(R"({"lines": %zu, "wrong": %zu, "p50_ms": %.3f, "p99_ms": %.3f, "max_ms": %.3f, "writers_cpu_s": %.3f})"
              "\n",
              delays.size(), wrong, quantile(0.5), quantile(0.99), quantile(1),
              static_cast<double>(writers_cpu_us) / 1e6);
  return wrong == 0 && delays.size() == ranks * static_cast<std::size_t>(lines) ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  const std::string_view what = count > 2 ? words[1] : "";
  if (what == "write") return write_lines(std::atol(words[2]), count > 3 ? std::atol(words[3]) : 0);
  if (what == "read" && count > 3)
    return read_lines(static_cast<std::size_t>(std::atol(words[2])), std::atol(words[3]));
  std::fputs("usage: tee_probe write LINES [PER_SECOND] | tee_probe read RANKS LINES\n", stderr);
  return 2;
}
