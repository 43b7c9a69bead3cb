#include "launcher/core/options/rendezvous_conf.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>

#include "launcher/core/options/option_values.hpp"
#include "launcher/core/text/python_numbers.hpp"
#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

using Entries = std::map<std::string, std::string, std::less<>>;

Error bad_key(std::string text) { return fail(errc::bad_value, std::move(text)); }

/// Contract: split at commas, each part at its first `=`, both halves stripped; later duplicates win.
Result<Entries> entries_of(std::string_view text) {
  Entries entries;
  text = stripped(text);
  if (text.empty()) return entries;
  for (const std::string_view part : split(text, ',')) {
    const auto equals = part.find('=');
    const std::string key{stripped(part.substr(0, equals))};
    if (key.empty()) {
      return bad_key("The rendezvous configuration string must be in format <key1>=<value1>,...,<keyN>=<valueN>.");
    }
    const std::string value{equals == std::string_view::npos ? "" : stripped(part.substr(equals + 1))};
    if (value.empty()) {
      return bad_key(fmt::format("The rendezvous configuration option '{}' must have a value specified.", key));
    }
    entries[key] = value;
  }
  for (const char* taken : {"backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr"}) {
    if (entries.contains(taken)) return bad_key(fmt::format("--rdzv-conf: '{}' has an option of its own", taken));
  }
  return entries;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return text;
}

Error no_integer(std::string_view key) {
  return bad_key(
      fmt::format("The rendezvous configuration option '{}' does not represent a valid integer value.", key));
}

class C10dReader {
 public:
  explicit C10dReader(const Entries& entries) : entries_{entries} {}

  Result<RendezvousConf> read() {
    using Step = Result<> (C10dReader::*)();
    for (const Step step : {&C10dReader::store_type, &C10dReader::is_host, &C10dReader::timeouts,
                            &C10dReader::keep_alives, &C10dReader::back_off}) {
      if (auto done = (this->*step)(); !done) return done.error();
    }
    return conf_;
  }

 private:
  [[nodiscard]] std::optional<std::string> text_of(std::string_view key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? std::nullopt : std::optional{found->second};
  }

  Result<> store_type() {
    const std::string type = lower(text_of("store_type").value_or("tcp"));
    if (type == "tcp") return {};
    if (type != "file") return bad_key("Invalid store type given. Currently only supports file and tcp.");
    return bad_key(
        "--rdzv-conf: store_type=file is not supported; leave it out and let --rdzv-endpoint name a host (c10d)");
  }

  Result<> is_host() {
    const auto given = text_of("is_host");
    if (!given) return {};
    const std::string word = lower(*given);
    const auto among = [&](std::initializer_list<std::string_view> words) {
      return std::find(words.begin(), words.end(), word) != words.end();
    };
    conf_.is_host = among({"1", "true", "t", "yes", "y"});
    if (!*conf_.is_host && !among({"0", "false", "f", "no", "n"})) {
      return bad_key("The rendezvous configuration option 'is_host' does not represent a valid boolean value.");
    }
    return {};
  }

  Result<> timeouts() {
    std::optional<Duration> unused;
    struct Timeout {
      std::string_view key, name;
      std::optional<Duration>* into;
    };
    for (const Timeout& timeout : {Timeout{"join_timeout", "join timeout", &conf_.join_timeout},
                                   Timeout{"last_call_timeout", "last call timeout", &conf_.last_call},
                                   Timeout{"close_timeout", "close timeout", &unused},
                                   Timeout{"heartbeat_timeout", "heartbeat timeout", &unused},
                                   Timeout{"keep_alive_interval", "keep alive interval", &keep_alive_},
                                   Timeout{"read_timeout", "read timeout", &unused}}) {
      const auto given = text_of(timeout.key);
      if (!given) continue;
      const auto value = python_int(*given);
      if (!value) return no_integer(timeout.key);
      if (*value <= 0 && timeout.key == "read_timeout") return bad_key("The read timeout must be a positive integer.");
      if (*value <= 0) {
        return bad_key(fmt::format("The {} ({}) must be positive.", timeout.name,
                                   *value == 0 ? std::string{"0:00:00"} : *given + " s"));
      }
      *timeout.into = std::chrono::seconds{std::min<std::int64_t>(*value, longest_s)};
    }
    return {};
  }

  Result<> keep_alives() {
    const auto given = text_of("keep_alive_max_attempt");
    std::int64_t attempts = 3;
    if (given) {
      const auto value = python_int(*given);
      if (!value) return no_integer("keep_alive_max_attempt");
      if (*value < 1 || *value > keep_alive_attempts_max) {
        return bad_key(fmt::format("--rdzv-conf: keep_alive_max_attempt={} must be from 1 to {}", *value,
                                   keep_alive_attempts_max));
      }
      attempts = *value;
    }
    if (!given && !keep_alive_) return {};
    const Duration interval = keep_alive_.value_or(std::chrono::seconds{5});
    conf_.lease = interval > longest_time / attempts ? longest_time : interval * attempts;
    return {};
  }

  /// A pause of torchrun's own; ours pushes what it writes and needs none.
  Result<> back_off() {
    const auto given = text_of("cas_backoff_max_seconds");
    if (!given) return {};
    const auto value = python_float(*given);
    const bool nan = lower(*given).ends_with("nan");
    if (!value && !nan)
      return bad_key(fmt::format("cas_backoff_max_seconds('{}') is not a valid float value.", *given));
    if (nan || !std::isfinite(*value) || *value < 0) {
      return bad_key(fmt::format("cas_backoff_max_seconds ({}) must be finite and non-negative.", *given));
    }
    return {};
  }

  static constexpr std::int64_t longest_s = std::chrono::duration_cast<std::chrono::seconds>(longest_time).count();

  const Entries& entries_;
  RendezvousConf conf_;
  std::optional<Duration> keep_alive_;
};

}  // namespace

Result<RendezvousConf> read_c10d_conf(std::string_view text) {
  const auto entries = entries_of(text);
  if (!entries) return entries.error();
  return C10dReader{*entries}.read();
}

Result<RendezvousConf> read_static_conf(std::string_view text) {
  const auto entries = entries_of(text);
  if (!entries) return entries.error();
  RendezvousConf conf;
  const auto timeout = entries->find("timeout");
  if (timeout == entries->end()) return conf;
  const auto value = python_int(timeout->second);
  if (!value) return bad_key(fmt::format("invalid literal for int() with base 10: '{}'", timeout->second));
  if (*value <= 0) return bad_key(fmt::format("--rdzv-conf: timeout={} must be a positive number of seconds", *value));
  conf.join_timeout = std::chrono::seconds{std::min<std::int64_t>(*value, longest_time / std::chrono::seconds{1})};
  return conf;
}

}  // namespace torchup
