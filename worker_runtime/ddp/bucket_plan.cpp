#include "worker_runtime/ddp/bucket_plan.hpp"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

namespace torchup {
namespace {

constexpr std::int64_t first_bucket_bytes = 1 << 20;  // small, so that communication starts early

struct KeyHash {
  std::size_t operator()(const BucketKey& key) const { return key.hash; }
};

struct OpenBucket {
  std::vector<std::size_t> positions;
  std::int64_t bytes = 0;
  std::size_t limit = 0;  ///< index into the limits
};

/// A cap that no buffer reaches is none, also where its bytes are beyond all integers.
std::int64_t bytes_of(double mebibytes) {
  const double bytes = mebibytes * (1 << 20);
  constexpr auto unlimited = std::numeric_limits<std::int64_t>::max();
  return bytes < static_cast<double>(unlimited) ? static_cast<std::int64_t>(bytes) : unlimited;
}

}  // namespace

BucketPlan plan_buckets(std::span<const PlannedTensor> tensors, std::span<const std::int64_t> limits,
                        LeftoverOrder order) {
  BucketPlan plan;
  // This very container, and nothing else inserted: its order of iteration is part of the result.
  std::unordered_map<BucketKey, OpenBucket, KeyHash> open;
  for (std::size_t position = 0; position < tensors.size(); ++position) {
    OpenBucket& bucket = open[tensors[position].key];
    bucket.positions.push_back(position);
    bucket.bytes += tensors[position].bytes;
    if (bucket.bytes < limits[bucket.limit]) continue;
    plan.push_back(std::exchange(bucket.positions, {}));
    bucket.bytes = 0;
    bucket.limit = std::min(bucket.limit + 1, limits.size() - 1);
  }
  for (auto& [key, bucket] : open)
    if (!bucket.positions.empty()) plan.push_back(std::move(bucket.positions));
  if (order == LeftoverOrder::by_first_tensor)
    std::sort(plan.begin(), plan.end(), [](const auto& a, const auto& b) { return a.front() < b.front(); });
  return plan;
}

BucketLimits bucket_limits(const BucketSettings& settings) {
  std::vector<std::int64_t> listed;
  for (const double cap : settings.cap_mb_list) listed.push_back(bytes_of(cap));
  if (!listed.empty()) return {.first = listed, .rebuilt = listed};

  const std::int64_t cap = bytes_of(settings.cap_mb);
  const std::vector<std::int64_t> usual =
      settings.cap_given || cap <= first_bucket_bytes ? std::vector{cap} : std::vector{first_bucket_bytes, cap};
  const bool known_order = settings.find_unused_parameters && !settings.static_graph;
  return {.first = known_order ? usual : std::vector{std::numeric_limits<std::int64_t>::max()}, .rebuilt = usual};
}

}  // namespace torchup
