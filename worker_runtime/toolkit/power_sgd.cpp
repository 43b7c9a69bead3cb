#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <random>
#include <string>
#include <torchup/collectives.hpp>
#include <torchup/error.hpp>
#include <torchup/power_sgd.hpp>

#include "worker_runtime/ddp/flat_buffer.hpp"

namespace torchup {

using torch::Tensor;

namespace {

/// Makes the columns of each matrix orthonormal, in place. (batch, rows, columns), columns <= rows.
void orthogonalize(Tensor matrices, double epsilon) {
  const int64_t columns = matrices.size(2);
  const auto type = matrices.scalar_type();
  if (columns > 2 && type != torch::kHalf && type != torch::kBFloat16) {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
    return;
  }
  for (int64_t i = 0; i < columns; ++i) {
    Tensor column = matrices.narrow(2, i, 1);
    Tensor norm = at::linalg_vector_norm(column, 2, at::IntArrayRef{1}, /*keepdim=*/true);
    column.div_(epsilon == 0 ? norm : norm + epsilon);
    if (i + 1 == columns) break;
    Tensor rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_((column * rest).sum({1}, /*keepdim=*/true) * column);
  }
}

/// The gradient as a matrix of its first dimension by all others, in memory order: a view also of channels-last
/// gradients.
Tensor as_matrix(const Tensor& gradient) {
  if (gradient.dim() == 0) return gradient.view({1, 1});
  const int64_t rows = gradient.size(0), columns = rows == 0 ? 0 : gradient.numel() / rows;
  return at::as_strided(gradient, {rows, columns}, {columns, 1}, gradient.storage_offset());
}

/// Gradients of one shape that are multiplied together, with their factors: matrices (b, n, m), p (b, n, r), q (b, m,
/// r).
struct Product {
  Tensor matrices, p, q;
  std::vector<Tensor> members;  ///< the gradients, when `matrices` is a copy
};

/// What one bucket's stages share.
struct Compression {
  Tensor buffer, before;             // `before`: the buffer with the error feedback, uncompressed
  std::vector<Tensor> uncompressed;  // views into the buffer
  Tensor uncompressed_flat;
  std::vector<Product> products;
  Tensor p, q;
  std::size_t index = 0;
  bool last = false;
};

}  // namespace

struct PowerSGD::State {
  State(ProcessGroup group_, PowerSGDOptions options_)
      : group{std::move(group_)}, options{options_}, random{options_.random_seed} {}

  /// numpy.random.RandomState(seed).randint(1_000_000_000): 30 bits, again while they are too large.
  int64_t draw_seed() {
    for (;;) {
      ++draws;
      if (const std::uint32_t bits = static_cast<std::uint32_t>(random()) & 0x3fffffff; bits < 1'000'000'000)
        return bits;
    }
  }
  [[nodiscard]] int64_t rank_of(int64_t rows, int64_t columns) const {
    return std::min({rows, columns, options.matrix_approximation_rank});
  }
  [[nodiscard]] Work reduce(const Tensor& flat) const {
    return flat.defined() && flat.numel() > 0 ? all_reduce_async(flat, group) : Work{};
  }

  // The stages of one bucket, in their order.
  BucketReduction reduce_whole(const GradBucket& bucket);
  void feed_error_back(Compression& now);
  std::vector<std::vector<Tensor>> sort_by_shape(const GradBucket& bucket, Compression& now);
  bool take_factors(Compression& now, const std::vector<std::vector<Tensor>>& shapes);
  void make_products(Compression& now, const std::vector<std::vector<Tensor>>& shapes) const;
  void multiply_by_q(Compression& now, bool fresh);
  void put_uncompressed_back(Compression& now) const;
  void multiply_by_p(Compression& now) const;
  void put_approximation_back(Compression& now);

  ProcessGroup group;
  PowerSGDOptions options;
  std::mt19937 random;
  std::uint64_t draws = 0;  ///< numbers taken from `random`: its state in a checkpoint
  int64_t iteration = 0;
  Statistics statistics;
  std::map<std::size_t, Tensor> error, p, q;  ///< by bucket: flat
};

PowerSGD::PowerSGD(ProcessGroup group, PowerSGDOptions options) {
  if (options.matrix_approximation_rank < 1) throw Error{"PowerSGD: matrix_approximation_rank must be >= 1"};
  if ((options.use_error_feedback || options.warm_start) && options.start_powerSGD_iter <= 1)
    throw Error{
        "PowerSGD: start_powerSGD_iter must be > 1 with use_error_feedback or warm_start: DDP rebuilds its buckets "
        "after the first iteration, and what belongs to a bucket would be lost"};
  state_ = std::make_shared<State>(std::move(group), options);
}

BucketReduction PowerSGD::State::reduce_whole(const GradBucket& bucket) {
  if (bucket.is_last()) ++iteration;
  Tensor buffer = bucket.buffer();
  buffer.div_(group.size());
  return {.result = buffer, .work = all_reduce_async(buffer, group), .stages = {}};
}

void PowerSGD::State::feed_error_back(Compression& now) {
  if (!options.use_error_feedback) return;
  // What was stored may be of other buckets: those of a checkpoint that was taken with other caps.
  const auto known = error.find(now.index);
  if (known != error.end() && known->second.numel() == now.buffer.numel())
    now.buffer.add_(known->second = known->second.to(now.buffer.device()));
  now.before = now.buffer.clone();
}

/// Matrices by shape, shapes in the order of first appearance: the order of P and Q in their flat buffers. What is not
/// worth compressing goes to `now.uncompressed`.
std::vector<std::vector<Tensor>> PowerSGD::State::sort_by_shape(const GradBucket& bucket, Compression& now) {
  std::vector<std::vector<Tensor>> shapes;
  for (const Tensor& gradient : bucket.gradients()) {
    const Tensor matrix = as_matrix(gradient);
    const int64_t n = matrix.size(0), m = matrix.size(1), full = n * m, thin = (n + m) * rank_of(n, m);
    const bool compress = static_cast<double>(thin) * options.min_compression_rate < static_cast<double>(full);
    statistics.before += full;
    statistics.after += compress ? thin : full;
    if (!compress) {
      now.uncompressed.push_back(matrix.view(-1));
      continue;
    }
    const auto same = std::find_if(shapes.begin(), shapes.end(),
                                   [&](const auto& known) { return known.front().sizes() == matrix.sizes(); });
    (same == shapes.end() ? shapes.emplace_back() : *same).push_back(matrix);
  }
  return shapes;
}

/// The bucket's P and Q. True when they are new and Q has to be drawn.
bool PowerSGD::State::take_factors(Compression& now, const std::vector<std::vector<Tensor>>& shapes) {
  int64_t p_size = 0, q_size = 0;
  for (const auto& members : shapes) {
    const int64_t n = members.front().size(0), m = members.front().size(1);
    const int64_t ranks = rank_of(n, m) * static_cast<int64_t>(members.size());
    p_size += n * ranks;
    q_size += m * ranks;
  }
  const auto holds = [&](const std::map<std::size_t, Tensor>& factors, int64_t size) {
    const auto known = factors.find(now.index);
    return known != factors.end() && known->second.numel() == size;
  };
  const bool fresh = !options.warm_start || !holds(p, p_size) || !holds(q, q_size);
  if (fresh) {
    p[now.index] = torch::empty({p_size}, now.buffer.options());
    q[now.index] = torch::empty({q_size}, now.buffer.options());
  }
  now.p = p.at(now.index) = p.at(now.index).to(now.buffer.device());
  now.q = q.at(now.index) = q.at(now.index).to(now.buffer.device());
  return fresh;
}

void PowerSGD::State::make_products(Compression& now, const std::vector<std::vector<Tensor>>& shapes) const {
  int64_t p_at = 0, q_at = 0;
  const auto add = [&](Tensor matrices, std::vector<Tensor> members) {
    const int64_t batch = matrices.size(0), n = matrices.size(1), m = matrices.size(2), rank = rank_of(n, m);
    Tensor left = now.p.narrow(0, p_at, batch * n * rank).view({batch, n, rank});
    Tensor right = now.q.narrow(0, q_at, batch * m * rank).view({batch, m, rank});
    p_at += left.numel();
    q_at += right.numel();
    now.products.push_back({std::move(matrices), std::move(left), std::move(right), std::move(members)});
  };
  for (const auto& members : shapes) {
    if (options.batch_tensors_with_same_shape && members.size() > 1)
      add(torch::stack(members), members);
    else
      for (const Tensor& matrix : members) add(matrix.unsqueeze(0), {});
  }
}

void PowerSGD::State::multiply_by_q(Compression& now, bool fresh) {
  std::optional<torch::Generator> generator;
  if (fresh) generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(draw_seed()));
  for (Product& product : now.products) {
    if (generator)
      product.q.copy_(torch::randn(product.q.sizes(), *generator,
                                   torch::TensorOptions{}.dtype(product.q.scalar_type()).device(torch::kCPU)));
    orthogonalize(product.q, options.orthogonalization_epsilon);
  }
  for (Product& product : now.products) at::bmm_out(product.p, product.matrices, product.q);
}

void PowerSGD::State::put_uncompressed_back(Compression& now) const {
  if (!now.uncompressed_flat.defined()) return;
  now.uncompressed_flat.div_(group.size());
  int64_t at = 0;
  for (Tensor& gradient : now.uncompressed) {
    gradient.copy_(now.uncompressed_flat.narrow(0, at, gradient.numel()));
    at += gradient.numel();
  }
}

void PowerSGD::State::multiply_by_p(Compression& now) const {
  for (Product& product : now.products) orthogonalize(product.p, options.orthogonalization_epsilon);
  for (Product& product : now.products) at::bmm_out(product.q, product.matrices.transpose(1, 2), product.p);
}

void PowerSGD::State::put_approximation_back(Compression& now) {
  now.q.div_(group.size());
  for (Product& product : now.products) {
    at::bmm_out(product.matrices, product.p, product.q.transpose(1, 2));
    for (std::size_t i = 0; i < product.members.size(); ++i)
      product.members[i].copy_(product.matrices[static_cast<int64_t>(i)]);
  }
  if (options.use_error_feedback) error[now.index] = now.before - now.buffer;
  if (!options.warm_start) {
    p.clear();
    q.clear();
  }
  if (now.last) ++iteration;
}

CommHook PowerSGD::hook() const {
  return [state = state_](const GradBucket& bucket) -> BucketReduction {
    const torch::NoGradGuard no_gradients;
    refuse_complex(bucket.buffer(), "PowerSGD");
    if (state->iteration < state->options.start_powerSGD_iter) return state->reduce_whole(bucket);

    const auto shared = std::make_shared<Compression>();
    Compression& now = *shared;
    now.buffer = bucket.buffer();
    now.index = bucket.index();
    now.last = bucket.is_last();
    state->feed_error_back(now);
    const auto shapes = state->sort_by_shape(bucket, now);
    const bool fresh = state->take_factors(now, shapes);
    state->make_products(now, shapes);
    state->multiply_by_q(now, fresh);

    if (!now.uncompressed.empty()) now.uncompressed_flat = torch::cat(now.uncompressed);
    BucketReduction reduction{.result = now.buffer, .work = state->reduce(now.uncompressed_flat), .stages = {}};
    reduction.stages.emplace_back([state, shared] {
      const torch::NoGradGuard no_grad;
      state->put_uncompressed_back(*shared);
      return state->reduce(shared->p);  // a sum: making it orthonormal removes the scale
    });
    reduction.stages.emplace_back([state, shared] {
      const torch::NoGradGuard no_grad;
      state->multiply_by_p(*shared);
      return state->reduce(shared->q);
    });
    reduction.stages.emplace_back([state, shared] {
      const torch::NoGradGuard no_grad;
      state->put_approximation_back(*shared);
      return Work{};
    });
    return reduction;
  };
}

PowerSGD::Statistics PowerSGD::statistics() const { return state_->statistics; }

StateDict PowerSGD::state_dict() const {
  const auto integer = [](int64_t value) { return torch::tensor(value, torch::kLong); };
  StateDict state{{"iter", integer(state_->iteration)},
                  {"rank", integer(state_->group.rank())},
                  {"world_size", integer(state_->group.size())},
                  {"draws", integer(static_cast<int64_t>(state_->draws))},
                  {"numel_before", integer(state_->statistics.before)},
                  {"numel_after", integer(state_->statistics.after)}};
  for (const auto& [index, tensor] : state_->error) state["error." + std::to_string(index)] = tensor;
  for (const auto& [index, tensor] : state_->p) state["p." + std::to_string(index)] = tensor;
  for (const auto& [index, tensor] : state_->q) state["q." + std::to_string(index)] = tensor;
  return state;
}

void PowerSGD::load_state_dict(const StateDict& saved) {
  const auto integer = [&](const char* name) {
    const auto found = saved.find(name);
    if (found == saved.end()) throw Error{std::string{"PowerSGD: the state to load has no "} + name};
    return found->second.item<int64_t>();
  };
  State& state = *state_;
  const bool ours = integer("rank") == state.group.rank() && integer("world_size") == state.group.size();
  state.iteration = integer("iter");
  state.statistics = {integer("numel_before"), integer("numel_after")};
  state.draws = static_cast<std::uint64_t>(integer("draws"));
  state.random.seed(state.options.random_seed);
  state.random.discard(state.draws);
  state.error.clear();
  state.p.clear();
  state.q.clear();
  for (const auto& [name, tensor] : saved) {
    const auto dot = name.find('.');
    if (dot == std::string::npos) continue;
    std::size_t index = 0;
    if (std::from_chars(name.data() + dot + 1, name.data() + name.size(), index).ptr != name.data() + name.size())
      throw Error{"PowerSGD: the state to load has an unknown entry " + name};
    const std::string kind = name.substr(0, dot);
    if (kind == "error" && !ours) continue;
    auto& by_bucket = kind == "error" ? state.error : kind == "p" ? state.p : state.q;
    by_bucket[index] = tensor.clone();  // goes to the gradients' device when it meets the first of them
  }
}

}  // namespace torchup
