#include "rendezvous/core/torchrun_wire/torchrun_roles.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "rendezvous/core/membership/seating.hpp"

namespace torchup {
namespace {

/// Text of a stranger, short enough for one line.
std::string quoted(const std::string& text) {
  return nlohmann::json(text.substr(0, 200)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::optional<int> number_of(const nlohmann::json& value, std::int64_t least, std::int64_t most) {
  if (!value.is_number_integer()) return {};
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(most)) return {};
  const auto number = value.get<std::int64_t>();
  if (number < least || number > most) return {};
  return static_cast<int>(number);
}

}  // namespace

std::string write_role(const Join& join, int group_rank) {
  const nlohmann::ordered_json role{
      {"role", join.role}, {"rank", group_rank}, {"local_world_size", join.local_world_size}};
  return role.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

Result<TorchrunRole> read_role(const std::string& text) {
  const auto fault = [&] { return fail(errc::bad_frame, "a node's role cannot be read: " + quoted(text)); };
  if (text.size() > torchrun_role_bytes_max) return fault();
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return fault();
  const auto role = json.find("role");
  const auto size = json.find("local_world_size");
  if (role == json.end() || size == json.end() || !role->is_string()) return fault();
  const auto workers = number_of(*size, 1, torchrun_local_world_max);
  if (!workers) return fault();
  return TorchrunRole{*role, *workers};
}

std::string write_ranks(const TorchrunRanks& ranks) {
  return fmt::format("[{}, {}, {}, {}]", ranks.first_rank, ranks.world_size, ranks.first_role_rank,
                     ranks.role_world_size);
}

Result<TorchrunRanks> read_ranks(const std::string& text, int nodes, int workers) {
  const auto fault = [&] {
    return fail(errc::bad_frame, "the ranks that group rank 0 gave us are none of this round: " + quoted(text));
  };
  if (text.size() > torchrun_role_bytes_max) return fault();
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_array() || json.size() != 4) return fault();
  std::array<int, 4> numbers{};
  for (std::size_t i = 0; i < 4; ++i) {
    const auto number = number_of(json[i], 0, world_size_max);
    if (!number) return fault();
    numbers[i] = *number;
  }
  const TorchrunRanks ranks{numbers[0], numbers[1], numbers[2], numbers[3]};
  // Each node has one worker at least, and those of this one have the node's role.
  const bool fits = ranks.world_size >= nodes && ranks.role_world_size <= ranks.world_size &&
                    ranks.first_rank <= ranks.world_size - workers &&
                    ranks.first_role_rank <= ranks.role_world_size - workers;
  if (!fits) return fault();
  return ranks;
}

std::vector<TorchrunRanks> share_ranks(std::span<const TorchrunRole> roles) {
  std::vector<NodeWorkers> nodes;
  int world_size = 0;
  for (const TorchrunRole& role : roles) {
    nodes.push_back({role.name, role.local_world_size});
    world_size += role.local_world_size;
  }
  std::vector<TorchrunRanks> result;
  for (const Seat& seat : share_ranks(nodes)) {
    result.push_back({seat.first_rank.value(), world_size, seat.first_role_rank.value(), seat.role_world_size});
  }
  return result;
}

}  // namespace torchup
