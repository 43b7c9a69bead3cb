#pragma once

#include <nlohmann/json_fwd.hpp>
#include <torchup/distributed_data_parallel.hpp>
#include <torchup/distributed_sampler.hpp>

namespace torchup {

// What is small in a job's state and no tensor, as it is written down. The way back throws nlohmann's exceptions where
// something is missing.

nlohmann::json to_facts(const SamplerPosition& position);
SamplerPosition sampler_position_from(const nlohmann::json& facts);

nlohmann::json to_facts(const BucketLayout& layout);
BucketLayout bucket_layout_from(const nlohmann::json& facts);

}  // namespace torchup
