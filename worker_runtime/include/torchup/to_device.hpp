#pragma once

#include <torch/data/example.h>
#include <torch/types.h>

#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torchup/distributed_sampler.hpp>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torchup {

// Calls `f(torch::Tensor&)` for every tensor of a batch. For a batch type of one's own, write an overload beside the
// type.

template <class F>
void for_each_tensor(torch::Tensor& tensor, const F& f) {
  if (tensor.defined()) f(tensor);
}
template <class Data, class Target, class F>
void for_each_tensor(torch::data::Example<Data, Target>& example, const F& f);
template <class First, class Second, class F>
void for_each_tensor(std::pair<First, Second>& pair, const F& f);
template <class... Parts, class F>
void for_each_tensor(std::tuple<Parts...>& tuple, const F& f);
template <class Part, class F>
void for_each_tensor(std::vector<Part>& parts, const F& f);
template <class Part, class F>
void for_each_tensor(std::optional<Part>& part, const F& f);
template <class Part, class F>
void for_each_tensor(std::map<std::string, Part>& parts, const F& f);

template <class Data, class Target, class F>
void for_each_tensor(torch::data::Example<Data, Target>& example, const F& f) {
  for_each_tensor(example.data, f);
  if constexpr (!std::is_void_v<Target>) for_each_tensor(example.target, f);
}
template <class First, class Second, class F>
void for_each_tensor(std::pair<First, Second>& pair, const F& f) {
  for_each_tensor(pair.first, f);
  for_each_tensor(pair.second, f);
}
template <class... Parts, class F>
void for_each_tensor(std::tuple<Parts...>& tuple, const F& f) {
  std::apply([&](auto&... part) { (for_each_tensor(part, f), ...); }, tuple);
}
template <class Part, class F>
void for_each_tensor(std::vector<Part>& parts, const F& f) {
  for (Part& part : parts) for_each_tensor(part, f);
}
template <class Part, class F>
void for_each_tensor(std::optional<Part>& part, const F& f) {
  if (part) for_each_tensor(*part, f);
}
template <class Part, class F>
void for_each_tensor(std::map<std::string, Part>& parts, const F& f) {
  for (auto& [name, part] : parts) for_each_tensor(part, f);
}

namespace detail {

/// Copies of batches to a device on a stream of their own: page-locked memory, no waiting of the host. Nothing to do
/// when the device is the CPU.
class Transfer {
 public:
  explicit Transfer(torch::Device device);
  ~Transfer();
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(Transfer&&) noexcept;

  void start(torch::Tensor& tensor);      ///< replaces it by its copy under way
  void mark();                            ///< all copies of the batch have been started
  void await();                           ///< makes the current stream wait for the marked copies
  void hand_over(torch::Tensor& tensor);  ///< the memory is in use by the current stream from now on

 private:
  struct Streams;
  torch::Device device_;
  std::unique_ptr<Streams> streams_;  // null for the CPU
};

}  // namespace detail

/// The batches of a loader on a device; see to_device.
template <class Loader>
class DeviceLoader {
 public:
  using Batch = typename Loader::BatchType;

  DeviceLoader(Loader& loader, torch::Device device, std::optional<DistributedSampler> sampler)
      : loader_{&loader}, device_{device}, sampler_{std::move(sampler)} {}

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Batch& operator*() { return *current_; }
    Batch* operator->() { return &*current_; }
    Iterator& operator++() {
      advance();
      return *this;
    }
    void operator++(int) { advance(); }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t) { return !iterator.current_; }

   private:
    friend class DeviceLoader;
    using Source = decltype(std::declval<Loader&>().begin());

    Iterator(Loader& loader, torch::Device device, std::optional<DistributedSampler> sampler)
        : source_{loader.begin()}, end_{loader.end()}, transfer_{device}, sampler_{std::move(sampler)},
          device_is_cpu_{device.is_cpu()} {
      fetch();
      hand_out();
    }
    // One batch ahead, so that its copies run while the one handed out is worked on. Not without somebody who counts
    // the batches handed out: the sampler would take the one ahead for used.
    bool fetches_ahead() const { return sampler_.has_value() && !device_is_cpu_; }
    void fetch() {
      next_.reset();
      if (!begun_)
        begun_ = true;
      else
        ++source_;
      if (source_ == end_) return;
      next_ = std::move(*source_);
      for_each_tensor(*next_, [&](torch::Tensor& tensor) { transfer_.start(tensor); });
      transfer_.mark();
    }
    void hand_out() {
      current_ = std::exchange(next_, std::nullopt);
      if (!current_) return;
      transfer_.await();
      for_each_tensor(*current_, [&](torch::Tensor& tensor) { transfer_.hand_over(tensor); });
      if (sampler_) sampler_->delivered();
      if (fetches_ahead()) fetch();
    }
    void advance() {
      if (!fetches_ahead()) fetch();
      hand_out();
    }

    Source source_;
    Source end_;
    detail::Transfer transfer_;
    std::optional<DistributedSampler> sampler_;
    bool device_is_cpu_;
    bool begun_ = false;
    std::optional<Batch> next_;
    std::optional<Batch> current_;
  };

  Iterator begin() { return Iterator{*loader_, device_, sampler_}; }
  std::default_sentinel_t end() const { return {}; }

 private:
  Loader* loader_;
  torch::Device device_;
  std::optional<DistributedSampler> sampler_;
};

/// The batches of `loader` (a torch::data loader, or anything with begin(), end() and BatchType), with all their
/// tensors on `device`. To a GPU they go through page-locked memory on a side stream. With a `sampler`, its position
/// counts the batches that the loop was given (see DistributedSampler), and copies to a GPU run one batch ahead of the
/// training loop; without one they do not, since the sampler would take the batch ahead for used.
///
///   for (auto& batch : torchup::to_device(*loader, worker.device(), sampler)) …
template <class Loader>
DeviceLoader<Loader> to_device(Loader& loader, torch::Device device,
                               std::optional<DistributedSampler> sampler = std::nullopt) {
  return DeviceLoader<Loader>{loader, device, std::move(sampler)};
}

}  // namespace torchup
