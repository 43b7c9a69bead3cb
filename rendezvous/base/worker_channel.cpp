#include "rendezvous/base/worker_channel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>
#include <vector>

#include "rendezvous/base/colon_numbers.hpp"
#include "rendezvous/base/worker_page.hpp"

namespace torchup {
namespace {

constexpr std::string_view stay_verb = "stay";
constexpr std::string_view leave_verb = "leave";
constexpr std::string_view raised_verb = "raised";
constexpr std::string_view parked_verb = "parked";
constexpr std::string_view abort_verb = "abort";
constexpr std::string_view cause_verb = "cause";
constexpr std::string_view place_verb = "place";
constexpr std::string_view look_verb = "look";
constexpr std::string_view looked_verb = "looked";
constexpr std::string_view text_name = "text";
constexpr std::string_view step_name = "step";
constexpr std::string_view reason_name = "reason";
constexpr std::string_view number_name = "number";
constexpr std::string_view passing_name = "passing";
constexpr std::string_view length_name = "length";

constexpr std::size_t text_bytes_max = 8 << 10;

bool is_name(std::string_view name) {
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && fits(name.front()) &&
         std::ranges::all_of(name, [&](char c) { return fits(c) || (c >= '0' && c <= '9'); });
}

/// A text for people as one line's value.
std::string fitted(std::string_view text) {
  std::string line{text.substr(0, text_bytes_max)};
  std::ranges::replace_if(
      line, [](char c) { return c == '\n' || c == '\0'; }, ' ');
  return line;
}

// ---- to a packet

class PacketWriter {
 public:
  explicit PacketWriter(std::string_view verb) { packet_.append(verb) += '\n'; }

  PacketWriter& add(std::string_view name, std::string_view value) {
    if (!is_name(name) || value.find_first_of(std::string_view{"\n\0", 2}) != std::string_view::npos) {
      if (unfit_.empty()) unfit_ = fmt::format("{} cannot be told to a running worker in one line", name);
    }
    packet_.append(name).append("=").append(value) += '\n';
    return *this;
  }

  Result<std::string> packet() && {
    if (!unfit_.empty()) return fail(errc::bad_value, std::move(unfit_));
    if (packet_.size() <= worker_packet_bytes_max) return std::move(packet_);
    return fail(errc::limit_exceeded, fmt::format("{} bytes are to be told to a running worker, {} fit", packet_.size(),
                                                  worker_packet_bytes_max));
  }

 private:
  std::string packet_;
  std::string unfit_;
};

PacketWriter write(const WorkerStays&) { return PacketWriter{stay_verb}; }
PacketWriter write(const WorkerLeaves&) { return PacketWriter{leave_verb}; }
PacketWriter write(const WorkerRaised& word) { return PacketWriter{raised_verb}.add(text_name, fitted(word.text)); }
PacketWriter write(const WorkerParked& word) {
  return PacketWriter{parked_verb}.add(step_name, std::to_string(word.step));
}
PacketWriter write(const WorkerLooked& word) {
  return PacketWriter{looked_verb}
      .add(number_name, std::to_string(word.number))
      .add(length_name, std::to_string(word.length));
}
PacketWriter write(const RoundOver& word) { return PacketWriter{abort_verb}.add(reason_name, fitted(word.reason)); }
PacketWriter write(const OwnFault&) { return PacketWriter{cause_verb}; }
PacketWriter write(const NewPlace& word) {
  PacketWriter writer{place_verb};
  for (const auto& [name, value] : word.variables) writer.add(name, value);
  return writer;
}
PacketWriter write(const LookWanted& word) {
  PacketWriter writer{look_verb};
  writer.add(number_name, std::to_string(word.number));
  if (word.in_passing) writer.add(passing_name, "1");
  return writer;
}

// ---- from a packet

struct Packet {
  std::string_view verb;
  std::vector<std::pair<std::string_view, std::string_view>> lines;

  [[nodiscard]] std::string_view text(std::string_view name) const {
    const auto line = std::ranges::find(lines, name, [](const auto& pair) { return pair.first; });
    return line == lines.end() ? std::string_view{} : line->second;
  }

  /// The whole value as a number from 0 to `most`.
  template <class Number>
  [[nodiscard]] std::optional<Number> number(std::string_view name,
                                             Number most = std::numeric_limits<Number>::max()) const {
    const std::string_view digits = text(name);
    Number value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool fits = error == std::errc{} && end == digits.data() + digits.size() && value >= 0 && value <= most;
    return fits ? std::optional{value} : std::nullopt;
  }
};

Result<Packet> take_apart(std::string_view bytes) {
  if (bytes.size() > worker_packet_bytes_max) {
    return fail(errc::limit_exceeded, fmt::format("a packet of {} bytes", bytes.size()));
  }
  if (bytes.empty() || bytes.back() != '\n') return fail(errc::bad_frame, "a packet with an open end");
  if (bytes.find('\0') != std::string_view::npos) return fail(errc::bad_frame, "a packet with a zero byte");
  Packet packet;
  for (bool first = true; !bytes.empty(); first = false) {
    const std::size_t end = bytes.find('\n');
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(end + 1);
    if (first) {
      if (!is_name(line)) return fail(errc::bad_frame, "a packet without a verb");
      packet.verb = line;
      continue;
    }
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos || !is_name(line.substr(0, equals))) {
      return fail(errc::bad_frame, fmt::format("a line of `{}` that is not NAME=value", packet.verb));
    }
    packet.lines.emplace_back(line.substr(0, equals), line.substr(equals + 1));
  }
  return packet;
}

}  // namespace

Result<std::string> to_packet(const WorkerWord& word) {
  return std::visit([](const auto& meant) { return write(meant).packet(); }, word);
}

Result<std::string> to_packet(const AgentWord& word) {
  return std::visit([](const auto& meant) { return write(meant).packet(); }, word);
}

Result<std::optional<WorkerWord>> parse_worker_word(std::string_view bytes) {
  const auto packet = take_apart(bytes);
  if (!packet) return packet.error();
  if (packet->verb == stay_verb) return WorkerStays{};
  if (packet->verb == leave_verb) return WorkerLeaves{};
  if (packet->verb == raised_verb) return WorkerRaised{std::string{packet->text(text_name)}};
  if (packet->verb == looked_verb) {
    const auto number = packet->number<std::uint64_t>(number_name);
    const auto length = packet->number<std::size_t>(length_name, worker_answer_bytes);
    if (number && length) return WorkerLooked{*number, *length};
    return fail(errc::bad_frame, "`looked` without number or length");
  }
  if (packet->verb != parked_verb) return std::optional<WorkerWord>{};
  if (const auto step = packet->number<std::int64_t>(step_name)) return WorkerParked{*step};
  return fail(errc::bad_frame, "`parked` without a step");
}

Result<std::optional<AgentWord>> parse_agent_word(std::string_view bytes) {
  const auto packet = take_apart(bytes);
  if (!packet) return packet.error();
  if (packet->verb == abort_verb) return RoundOver{std::string{packet->text(reason_name)}};
  if (packet->verb == cause_verb) return OwnFault{};
  if (packet->verb == look_verb) {
    if (const auto number = packet->number<std::uint64_t>(number_name))
      return LookWanted{*number, packet->text(passing_name) == "1"};
    return fail(errc::bad_frame, "`look` without a number");
  }
  if (packet->verb != place_verb) return std::optional<AgentWord>{};
  NewPlace place;
  for (const auto& [name, value] : packet->lines) {
    if (!place.variables.emplace(name, value).second) {
      return fail(errc::bad_frame, fmt::format("`place` that names {} twice", name));
    }
  }
  return place;
}

std::string to_text(const WorkerChannelAddress& address) {
  return fmt::format("1:{}:{}:{}", address.fd, address.inode, address.pid);
}

Result<WorkerChannelAddress> parse_worker_channel_address(std::string_view text) {
  const auto named = [&](std::string_view what) {
    return fmt::format("{}={} {}", worker_channel_variable, text.substr(0, 100), what);
  };
  WorkerChannelAddress address;
  int version = 0;
  const bool whole = read_colon_numbers(text, version, address.fd, address.inode, address.pid);
  if (whole && version != 1) return fail(errc::wrong_version, named("is of a version that is not known here"));
  if (whole && address.fd >= 0 && address.pid > 0) return address;
  return fail(errc::bad_value, named("is not 1:descriptor:inode:pid"));
}

}  // namespace torchup
