#include "launcher/core/fan_out/fan_out_result.hpp"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace torchup {
namespace {

using nlohmann::ordered_json;

/// An object begins and ends at the beginning of a line.
std::string_view last_object(std::string_view text) {
  constexpr std::string_view between = "\n}\n{";
  const auto at = text.rfind(between);
  return at == std::string_view::npos ? text : text.substr(at + between.size() - 1);
}

}  // namespace

std::string fan_out_result(int exit_code, const std::vector<HostResult>& results) {
  ordered_json hosts = ordered_json::array();
  std::optional<std::size_t> teller;
  for (const HostResult& result : results) {
    ordered_json read = ordered_json::parse(last_object(result.text), nullptr, false);
    if (!read.is_object()) continue;
    read["host"] = result.host;
    if (!teller && !result.left) teller = hosts.size();
    hosts.push_back(std::move(read));
  }
  ordered_json out = hosts.empty() ? ordered_json{{"schema", 1}} : hosts[teller.value_or(0)];
  out["exit_code"] = exit_code;
  out["hosts"] = std::move(hosts);
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace torchup
