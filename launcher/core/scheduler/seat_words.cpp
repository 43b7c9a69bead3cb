#include "launcher/core/scheduler/seat_words.hpp"

#include <fmt/format.h>

#include <charconv>

#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

constexpr std::size_t step_bytes_max = 72;  ///< a socket's name has 107 bytes at most
constexpr std::string_view no_devices = "-";
constexpr char devices_mark = '=';  ///< before a list, which may be empty

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211U;
  return hash;
}

}  // namespace

std::string seat_name(std::string_view step, std::uint32_t user) {
  if (step.size() <= step_bytes_max) return fmt::format("torchup.{}.{}", step, user);
  return fmt::format("torchup.{}{:016x}.{}", step.substr(0, step_bytes_max - 16), hash_of(step), user);
}

std::string card_text(const SeatCard& card) {
  return fmt::format("{}\n{}\n{}", card.task, to_cpu_list(card.cpus),
                     card.devices ? devices_mark + *card.devices : std::string{no_devices});
}

Result<SeatCard> read_card(std::string_view text) {
  const auto lines = split(text, '\n');
  const auto task = number(lines.front());
  if (text.size() >= seat_packet_bytes_max || lines.size() != 3 || !task) {
    return fail(errc::bad_value, "what a task says of itself cannot be understood");
  }
  auto cpus = parse_cpu_list(lines[1]);
  if (!cpus) return cpus.error();
  SeatCard card{*task, *std::move(cpus), std::nullopt};
  if (lines[2] == no_devices) return card;
  if (!lines[2].starts_with(devices_mark)) return fail(errc::bad_value, "a task's devices cannot be understood");
  card.devices = lines[2].substr(1);
  return card;
}

std::string code_text(int code) { return fmt::format("{}", code); }

std::optional<int> read_code(std::string_view text) {
  const auto code = number(text);
  return code && *code <= 255 ? code : std::nullopt;
}

}  // namespace torchup
