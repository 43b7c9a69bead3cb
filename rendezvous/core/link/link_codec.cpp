#include "rendezvous/core/link/link_codec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/link/typed_frames.hpp"

namespace torchup {

namespace wire {

void plan_words(auto& a, const char* what, std::vector<std::string>& list) {
  a.list(what, list, link_words_max, [&a](std::string& word) { a.text("a word", word, link_message_bytes_max); });
}

void fields(auto& a, LinkPlan& m) {
  a.name("a version", m.version);
  a.name("a host", m.name);
  a.number("a node", m.node, 0, nodes_max - 1);
  a.name("an address", m.address);
  a.text("a directory", m.directory, link_message_bytes_max);
  plan_words(a, "an environment", m.environment);
  plan_words(a, "arguments", m.arguments);
  plan_words(a, "a program", m.program);
  a.number("workers", m.workers, 0, local_workers_max);
  a.name("a run id", m.run_id);
  a.text("a token", m.token, link_message_bytes_max);
  a(m.own_coordinator, m.wants_events, m.wants_result);
}
void fields(auto& a, LinkSignal& m) { a.number("a signal", m.number, 1, signal_max); }
void fields(auto& a, LinkAck& m) { a(m.bytes); }
void fields(auto&, LinkPing&) {}

void fields(auto& a, LinkHello& m) {
  a.name("a version", m.version);
  a.name("a host", m.host);
  a.list("addresses", m.addresses, addresses_max, [&a](std::string& address) { a.name("an address", address); });
}
void fields(auto& a, LinkRefuse& m) {
  a.number("an exit code", m.code, 0, exit_code_max);
  a.text("a reason", m.text, link_text_bytes_max);
}
void fields(auto& a, LinkEnded& m) { a.number("an exit code", m.code, 0, exit_code_max); }

}  // namespace wire

namespace {

/// Type numbers, in the order of the variants' alternatives. Never change one; add at the end.
constexpr std::array<std::uint8_t, std::variant_size_v<FrontMessage>> front_types{1, 2, 3, 4};
constexpr std::array<std::uint8_t, std::variant_size_v<FarMessage>> far_types{65, 66, 67, 68};

constexpr std::uint8_t front_type_last = 63, far_type_first = 64, far_type_last = 127;
/// What a message holds beside a plan's words and their lengths.
constexpr std::size_t plan_rest_bytes = std::size_t{4} << 10;

[[nodiscard]] bool is_known(std::uint8_t channel) { return channel <= static_cast<std::uint8_t>(LinkChannel::result); }

}  // namespace

void append_link_frames(std::string& out, LinkChannel channel, std::string_view bytes) {
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, link_frame_bytes_max);
    wire::Writer header;
    header(static_cast<std::uint8_t>(channel), static_cast<std::uint32_t>(part.size()));
    out += header.take();
    out += part;
    bytes.remove_prefix(part.size());
  }
}

Result<std::optional<LinkFrame>> take_link_frame(std::string_view& input) {
  while (input.size() >= link_header_bytes) {
    std::uint8_t channel = 0;
    std::uint32_t length = 0;
    wire::Reader{input.substr(0, link_header_bytes)}(channel, length);
    if (length > link_frame_bytes_max) {
      return fail(errc::limit_exceeded,
                  fmt::format("a frame of {} bytes, where {} are allowed", length, link_frame_bytes_max));
    }
    if (input.size() - link_header_bytes < length) break;
    const std::string_view bytes = input.substr(link_header_bytes, length);
    input.remove_prefix(link_header_bytes + length);
    if (is_known(channel)) return LinkFrame{static_cast<LinkChannel>(channel), bytes};
  }
  return std::optional<LinkFrame>{};
}

std::string encode(const FrontMessage& message) { return wire::encode_frame(message, front_types); }
std::string encode(const FarMessage& message) { return wire::encode_frame(message, far_types); }

Result<> check_link_plan(const LinkPlan& plan) {
  std::size_t bytes = plan_rest_bytes + plan.directory.size() + plan.token.size();
  std::size_t words = 0;
  for (const auto* list : {&plan.environment, &plan.arguments, &plan.program}) {
    words = std::max(words, list->size());
    for (const std::string& word : *list) bytes += word.size() + sizeof(std::uint32_t);
  }
  if (bytes <= link_message_bytes_max && words <= link_words_max) return {};
  return fail(
      errc::limit_exceeded,
      fmt::format("environment and command line have {} bytes, where {} MiB can be sent to other hosts; --export "
                  "sends less of the environment",
                  bytes, link_message_bytes_max >> 20));
}

Result<std::optional<FrontMessage>> take_front_message(std::string_view& input) {
  return wire::take_frame<FrontMessage>(input, link_message_bytes_max, front_types, 1, front_type_last);
}
Result<std::optional<FarMessage>> take_far_message(std::string_view& input) {
  return wire::take_frame<FarMessage>(input, link_message_bytes_max, far_types, far_type_first, far_type_last);
}

}  // namespace torchup
