#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/text/json.hpp"
#include "launcher/ctl/table.hpp"

/// Jobs for people, from the JSON of the interface; whatever stands in it. Pure.
namespace torchup {

/// One launcher in `ps`: a row of `GET /v1/jobs`, or one that does not answer, of which the socket's name is known.
/// `answering` says which.
[[nodiscard]] std::string ps_text(std::span<const json> rows);

/// Letters of local ranks, each in the colour of its state.
[[nodiscard]] std::string rank_letters(std::string_view letters, Colour colour);

/// A job's snapshot as lines: how it goes, its nodes with the letters of their ranks, its last incident.
struct StatusView {
  Colour colour = Colour::none;
  bool worst_first = false;          ///< nodes; else in the order of their ranks
  std::size_t nodes_max = SIZE_MAX;  ///< so many are shown, the others are counted
};
[[nodiscard]] std::vector<std::string> status_lines(const json& snapshot, const StatusView& view);

/// One line about an event: time, host, what it is and its fields.
[[nodiscard]] std::string event_line(const json& event);

/// JSON text that steers no terminal: DEL and the C1 characters as their escapes, a carriage return between two values
/// as a blank. It means the same.
[[nodiscard]] std::string harmless_json(std::string_view text);
/// A value as one line of such text, with its line end.
[[nodiscard]] std::string json_line(const json& value);

/// Lines cut to a width, where escape sequences take none.
[[nodiscard]] std::string cut_line(std::string_view line, std::size_t columns);

}  // namespace torchup
