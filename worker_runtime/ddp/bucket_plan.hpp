#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace torchup {

/// What tensors must have in common to lie in one flat buffer.
struct BucketKey {
  int dtype = 0;
  int device = 0;
  std::size_t hash = 0;  ///< as LibTorch hashes (dtype, device): the order of leftover buckets follows it

  friend bool operator==(const BucketKey& a, const BucketKey& b) { return a.dtype == b.dtype && a.device == b.device; }
};

struct PlannedTensor {
  BucketKey key;
  std::int64_t bytes = 0;
};

/// Positions in the planned list, one list per bucket. Every position appears exactly once.
using BucketPlan = std::vector<std::vector<std::size_t>>;

enum class LeftoverOrder { hashed, by_first_tensor };

/// Puts tensors, in the given order, into buckets of one key each.
///
/// A bucket closes once it holds at least its limit in bytes. Each key walks through `limits` (not empty) on its own,
/// from the first on; the last one repeats. Buckets that never filled come last, in the order of a hash table, which is
/// how PyTorch orders them: gradients are bit-equal for three and more ranks only if every element has PyTorch's place.
/// `by_first_tensor` sorts all buckets by their smallest position.
///
/// Source: PyTorch, c10d::compute_bucket_assignment_by_size.
BucketPlan plan_buckets(std::span<const PlannedTensor> tensors, std::span<const std::int64_t> limits,
                        LeftoverOrder order);

/// The limits in bytes at construction and at the rebuild after the first synchronised backward pass.
struct BucketLimits {
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> rebuilt;
};

struct BucketSettings {
  double cap_mb = 25;                    ///< MiB, fractions allowed
  bool cap_given = false;                ///< said by the user, even if it is 25
  std::vector<double> cap_mb_list = {};  ///< wins over cap_mb
  bool find_unused_parameters = false;
  bool static_graph = false;
};

/// Python's rules: without find_unused_parameters everything of a key is one bucket at first; the small first bucket (1
/// MiB) exists only where the user gave no cap; a list is used for both.
BucketLimits bucket_limits(const BucketSettings& settings);

}  // namespace torchup
