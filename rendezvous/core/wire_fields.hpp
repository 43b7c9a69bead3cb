#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "rendezvous/core/agent_codec.hpp"

/// How values become bytes and back, for the codecs of this folder: of messages (agent_codec) and of jobs (job_codec).
///
/// Each message names its fields once, in `fields`; Writer and Reader both walk them.
namespace torchup::wire {

template <class T>
concept Number = std::integral<T> && !std::same_as<T, bool>;

void fields(auto& a, WorkerFailure& m);

class Writer {
 public:
  template <class... T>
  void operator()(const T&... values) {
    (write(values), ...);
  }
  template <class T>
  void enumeration(const T& value, T) {
    write(static_cast<std::uint8_t>(value));
  }
  void name(const std::string& text) { write_text(text, name_bytes_max); }
  void names(const std::vector<std::string>& texts) {
    write(static_cast<std::uint32_t>(texts.size()));
    for (const std::string& text : texts) name(text);
  }
  void told(const std::vector<WorkerFailure>& failures) {
    const std::size_t count = std::min(failures.size(), failures_told_max);
    write(static_cast<std::uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i) write(failures[i]);
  }
  void message(const std::string& text) { write_text(text, message_bytes_max); }
  template <class T>
  void many(const std::vector<T>& items, std::size_t) {
    write(items);
  }
  template <class T>
  void number(const T& value, T, T) {
    write(value);
  }
  [[nodiscard]] std::string take() { return std::move(bytes_); }

 private:
  template <Number T>
  void write(T value) {
    using Bits = std::make_unsigned_t<T>;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<char>(static_cast<Bits>(value) >> (8 * i) & 0xff));
    }
  }
  void write(bool value) { bytes_.push_back(value ? 1 : 0); }
  void write(const std::string& text) { write_text(text, text_bytes_max); }
  void write_text(std::string_view text, std::size_t limit) {
    text = text.substr(0, limit);
    write(static_cast<std::uint32_t>(text.size()));
    bytes_ += text;
  }
  template <std::size_t n>
  void write(const std::array<std::uint8_t, n>& octets) {
    bytes_.append(octets.begin(), octets.end());
  }
  void write(Duration duration) {
    write(std::int64_t{std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count()});
  }
  template <class Tag, class T>
  void write(const Strong<Tag, T>& strong) {
    write(strong.value());
  }
  template <class T>
  void write(const std::vector<T>& items) {
    write(static_cast<std::uint32_t>(items.size()));
    for (const T& item : items) write(item);
  }
  template <class T>
  void write(const std::optional<T>& item) {
    write(item.has_value());
    if (item) write(*item);
  }
  template <class T>
  requires requires(Writer& writer, T& message) { fields(writer, message); }
  void write(const T& message) {
    fields(*this, const_cast<T&>(message));  // the same description serves the reader, which writes to it
  }

  std::string bytes_;
};

/// After the first failure nothing more is read and `error` says what was wrong.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_{bytes} {}

  template <class... T>
  void operator()(T&... values) {
    (read(values), ...);
  }
  template <class T>
  void enumeration(T& value, T last) {
    std::uint8_t raw = 0;
    read(raw);
    if (raw > static_cast<std::uint8_t>(last)) return refuse(errc::bad_frame, "a choice is out of its range");
    value = static_cast<T>(raw);
  }
  /// A text that people and files may see: short, without control characters.
  void name(std::string& text) {
    read(text);
    if (text.size() > name_bytes_max) return refuse(errc::limit_exceeded, "a name is longer than 256 bytes");
    const auto control = [](char letter) { return static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f; };
    if (std::any_of(text.begin(), text.end(), control)) refuse(errc::bad_frame, "a name has control characters");
  }
  void names(std::vector<std::string>& texts) {
    texts.resize(std::min(count(list_items_max, "a list"), rest_.size()));
    for (std::string& text : texts) name(text);
  }
  void told(std::vector<WorkerFailure>& failures) { read(failures); }
  void message(std::string& text) { read(text); }
  /// A list with a limit of its own.
  template <class T>
  void many(std::vector<T>& items, std::size_t limit) {
    items.resize(std::min(count(limit, "a list"), rest_.size()));  // an item has a byte at least
    for (T& item : items) read(item);
  }
  template <class T>
  void number(T& value, T smallest, T largest) {
    read(value);
    if (!error_ && (value < smallest || value > largest)) refuse(errc::bad_frame, "a number is out of its range");
  }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  void refuse(errc code, std::string why) {
    if (!error_) error_ = fail(code, std::move(why));
    rest_ = {};
  }
  std::string_view octets(std::size_t count) {
    if (count > rest_.size()) {
      refuse(errc::bad_frame, "a frame is shorter than its fields");
      return {};
    }
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  std::size_t count(std::size_t limit, const char* what) {
    std::uint32_t items = 0;
    read(items);
    if (items <= limit) return items;
    refuse(errc::limit_exceeded, std::string{what} + " is longer than " + std::to_string(limit));
    return 0;
  }

  template <Number T>
  void read(T& value) {
    const std::string_view bytes = octets(sizeof(T));
    std::make_unsigned_t<T> bits = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bits = static_cast<std::make_unsigned_t<T>>(
          bits | static_cast<std::make_unsigned_t<T>>(static_cast<unsigned char>(bytes[i])) << (8 * i));
    }
    value = static_cast<T>(bits);
  }
  void read(bool& value) {
    std::uint8_t raw = 0;
    read(raw);
    if (raw > 1) refuse(errc::bad_frame, "a truth value is neither 0 nor 1");
    value = raw == 1;
  }
  void read(std::string& text) { text = octets(count(text_bytes_max, "a text")); }
  template <std::size_t n>
  void read(std::array<std::uint8_t, n>& value) {
    const std::string_view bytes = octets(n);
    std::copy(bytes.begin(), bytes.end(), value.begin());
  }
  void read(Duration& duration) {
    std::int64_t nanoseconds = 0;
    number(nanoseconds, std::int64_t{0}, std::int64_t{std::chrono::nanoseconds{std::chrono::hours{24 * 365}}.count()});
    duration = std::chrono::nanoseconds{nanoseconds};
  }
  template <class Tag, class T>
  void read(Strong<Tag, T>& strong) {
    T value{};
    if constexpr (std::same_as<T, std::string>) {
      name(value);
    } else {
      number(value, T{0}, std::numeric_limits<T>::max());
    }
    strong = Strong<Tag, T>{std::move(value)};
  }
  template <class T>
  void read(std::vector<T>& items) {
    many(items, list_items_max);
  }
  template <class T>
  void read(std::optional<T>& item) {
    bool there = false;
    read(there);
    if (!there) return item.reset();
    if constexpr (std::constructible_from<T, int>) {
      read(item.emplace(0));
    } else {
      read(item.emplace());
    }
  }
  template <class T>
  requires requires(Reader& reader, T& message) { fields(reader, message); }
  void read(T& message) { fields(*this, message); }

  std::string_view rest_;
  std::optional<Error> error_;
};

inline constexpr int int_max = std::numeric_limits<int>::max();
inline constexpr int workers_max = 1 << 20;  // of one node

void fields(auto& a, Fact& m) {
  a.name(m.name);
  a.name(m.value);
}
void fields(auto& a, JobTerms& m) {
  a.number(m.min_nodes, 1, int_max);
  a.number(m.max_nodes, m.min_nodes, int_max);
  a.number(m.nodes_multiple_of, 1, int_max);
  a.number(m.max_restarts, 0, int_max);
  a(m.restart_window);
  a(m.join_timeout, m.last_call, m.lease);
  a.enumeration(m.rank_order, RankOrder::hostlist);
  a.enumeration(m.same_world, SameWorld::fail);
  a(m.hostlist);
}
void fields(auto& a, WorkerFailure& m) {
  a(m.rank, m.local_rank, m.exit_code, m.pid);
  a.name(m.host);
  a(m.time_us);
  a.message(m.message);
  a.message(m.error_file);
}
void fields(auto& a, Placement& m) {
  a(m.round, m.group_rank, m.group_world_size, m.first_rank, m.world_size, m.first_role_rank, m.role_world_size);
  a.name(m.master_addr);
  a(m.master_port, m.restart_count, m.membership_changes);
}
void fields(auto& a, Verdict& m) {
  a.number(m.exit_code, 0, 255);
  a(m.reason);
  a.told(m.failures);
  a.number(m.stop_signal, 0, 64);
  a(m.kill_now);
}
void fields(auto& a, Join& m) {
  a(m.node);
  a.name(m.host);
  a.names(m.addresses);
  a(m.address_demanded);
  a.number(m.local_world_size, 1, workers_max);
  a.name(m.role);
  a(m.group_rank, m.terms, m.facts, m.former);
}
void fields(auto& a, StoreReady& m) { a(m.round, m.port); }
void fields(auto& a, WorkersFailed& m) {
  a(m.round);
  a.told(m.failures);
  a(m.may_restart);
}
void fields(auto& a, WorkersSucceeded& m) { a(m.round); }
void fields(auto& a, Leave& m) {
  a(m.ends_job);
  a.number(m.exit_code, 0, 255);
  a(m.reason);
  a.told(m.failures);
  a.number(m.stop_signal, 0, 64);
  a(m.kill_now);
}
void fields(auto& a, Resume& m) {
  a(m.join);
  a.enumeration(m.stage, Resume::Stage::failed);
  a(m.placement, m.store, m.failed);
}
void fields(auto& a, HostStore& m) { a(m.round); }
void fields(auto& a, Placed& m) { a(m.placement); }
void fields(auto& a, StopWorkers& m) {
  a(m.round);
  a.enumeration(m.cause, StopCause::fenced);
  a(m.reason);
}
void fields(auto& a, End& m) { a(m.verdict); }
void fields(auto& a, Waiting& m) { a(m.roster); }
void fields(auto& a, Hello& m) { a(m.version_min, m.version_max, m.has_token, m.nonce, m.run_id); }
void fields(auto& a, Proof& m) { a(m.mac); }
void fields(auto& a, KeepAlive& m) { a(m.number); }
void fields(auto& a, Challenge& m) { a(m.version, m.nonce, m.mac); }
void fields(auto& a, Welcome& m) { a(m.version, m.embedded); }
void fields(auto& a, KeepAliveAnswer& m) { a(m.number); }
void fields(auto& a, Refused& m) {
  a.number(m.exit_code, 0, 255);
  a(m.reason);
}

}  // namespace torchup::wire
