#include "worker_runtime/state/part_facts.hpp"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace torchup {

nlohmann::json to_facts(const SamplerPosition& position) {
  return {{"epoch", position.epoch}, {"consumed", position.consumed}, {"seed", position.seed}};
}

SamplerPosition sampler_position_from(const nlohmann::json& facts) {
  return {facts.at("epoch"), facts.at("consumed"), facts.at("seed")};
}

nlohmann::json to_facts(const BucketLayout& layout) {
  return {{"rebuilt", layout.rebuilt},
          {"buckets", layout.buckets},
          {"caps_mb", layout.caps_mb},
          {"arrived", layout.arrived}};
}

BucketLayout bucket_layout_from(const nlohmann::json& facts) {
  return {.buckets = facts.at("buckets").get<std::vector<std::vector<std::int64_t>>>(),
          .rebuilt = facts.at("rebuilt"),
          .caps_mb = facts.at("caps_mb").get<std::vector<double>>(),
          .arrived = facts.value("arrived", std::vector<std::int64_t>{})};  // younger than the others
}

}  // namespace torchup
