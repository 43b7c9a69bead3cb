#include "worker_runtime/state/optimizer_state.hpp"

#include <fmt/format.h>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <array>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <sstream>
#include <torchup/error.hpp>
#include <torchup/fused_optimizers.hpp>

namespace torchup {

namespace {

using nlohmann::json;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;
using Tensors = std::map<std::string, torch::Tensor>;

template <class State, class F>
void for_each_field(State& state, const F& f) {
  using namespace torch::optim;
  if constexpr (std::is_same_v<State, LBFGSParamState>) {  // its field `al` is scratch memory of a step
    f("func_evals", state.func_evals());
    f("n_iter", state.n_iter());
    f("t", state.t());
    f("prev_loss", state.prev_loss());
    f("d", state.d());
    f("H_diag", state.H_diag());
    f("prev_flat_grad", state.prev_flat_grad());
    f("old_dirs", state.old_dirs());
    f("old_stps", state.old_stps());
    f("ro", state.ro());
  } else if constexpr (std::is_same_v<State, SGDParamState>) {
    f("momentum_buffer", state.momentum_buffer());
  } else if constexpr (std::is_same_v<State, AdamParamState> || std::is_same_v<State, AdamWParamState>) {
    f("step", state.step());
    f("exp_avg", state.exp_avg());
    f("exp_avg_sq", state.exp_avg_sq());
    f("max_exp_avg_sq", state.max_exp_avg_sq());
  } else if constexpr (std::is_same_v<State, FusedSGDState>) {
    f("momentum_buffer", state.momentum_buffer);
  } else if constexpr (std::is_same_v<State, FusedAdamState>) {
    f("step", state.step);
    f("exp_avg", state.exp_avg);
    f("exp_avg_sq", state.exp_avg_sq);
    f("max_exp_avg_sq", state.max_exp_avg_sq);
  } else if constexpr (std::is_same_v<State, AdagradParamState>) {
    f("step", state.step());
    f("sum", state.sum());
  } else {
    static_assert(std::is_same_v<State, RMSpropParamState>);
    f("step", state.step());
    f("square_avg", state.square_avg());
    f("momentum_buffer", state.momentum_buffer());
    f("grad_avg", state.grad_avg());
  }
}

/// How the state of one kind of optimizer is taken apart and put together.
struct Kind {
  const char* name;
  bool (*fits)(const Optimizer&);
  void (*store)(OptimizerParamState&, const std::string& prefix, NamedTensors&);
  std::unique_ptr<OptimizerParamState> (*restore)(const torch::Tensor& parameter, const std::string& prefix,
                                                  const Tensors&, bool adopt);
};

/// A stored tensor where the parameter is, in the parameter's memory layout: itself or a copy.
torch::Tensor beside(const torch::Tensor& parameter, const torch::Tensor& stored, bool adopt) {
  const bool alike = stored.sizes() != parameter.sizes() || stored.strides() == parameter.strides();
  if (adopt && alike && stored.device() == parameter.device()) return stored;
  if (stored.sizes() != parameter.sizes())
    return stored.to(parameter.device(), stored.scalar_type(), false, /*copy=*/true);
  return torch::empty_like(parameter, stored.scalar_type()).copy_(stored);
}

template <class AnOptimizer, class State>
constexpr Kind kind(const char* name) {
  return {name, [](const Optimizer& optimizer) { return dynamic_cast<const AnOptimizer*>(&optimizer) != nullptr; },
          [](OptimizerParamState& state, const std::string& prefix, NamedTensors& tensors) {
            for_each_field(static_cast<State&>(state), [&](const char* field, auto& value) {
              using Field = std::remove_cvref_t<decltype(value)>;
              if constexpr (std::is_same_v<Field, torch::Tensor>) {
                if (value.defined()) tensors.emplace_back(prefix + field, value);
              } else if constexpr (std::is_same_v<Field, std::deque<torch::Tensor>>) {
                for (std::size_t i = 0; i < value.size(); ++i)
                  tensors.emplace_back(prefix + field + "/" + std::to_string(i), value[i]);
              } else {
                tensors.emplace_back(prefix + field, torch::tensor(value, c10::CppTypeToScalarType<Field>::value));
              }
            });
          },
          [](const torch::Tensor& parameter, const std::string& prefix, const Tensors& tensors, bool adopt) {
            std::unique_ptr<State> state;  // none when nothing of this parameter is stored: it never had a gradient
            State read;
            for_each_field(read, [&](const char* field, auto& value) {
              using Field = std::remove_cvref_t<decltype(value)>;
              if constexpr (std::is_same_v<Field, std::deque<torch::Tensor>>) {
                for (auto found = tensors.end();
                     (found = tensors.find(prefix + field + "/" + std::to_string(value.size()))) != tensors.end();) {
                  value.push_back(beside(parameter, found->second, adopt));
                }
                return;
              } else {
                const auto found = tensors.find(prefix + field);
                if (found == tensors.end()) return;
                if (!state) state = std::make_unique<State>();
                if constexpr (std::is_same_v<Field, torch::Tensor>) {
                  value = beside(parameter, found->second, adopt);
                } else {
                  value = found->second.template item<Field>();
                }
              }
            });
            if (state) *state = read;
            return std::unique_ptr<OptimizerParamState>{std::move(state)};
          }};
}

constexpr std::array kinds{kind<torch::optim::SGD, torch::optim::SGDParamState>("SGD"),
                           kind<torch::optim::Adam, torch::optim::AdamParamState>("Adam"),
                           kind<torch::optim::AdamW, torch::optim::AdamWParamState>("AdamW"),
                           kind<torch::optim::Adagrad, torch::optim::AdagradParamState>("Adagrad"),
                           kind<torch::optim::RMSprop, torch::optim::RMSpropParamState>("RMSprop"),
                           kind<torch::optim::LBFGS, torch::optim::LBFGSParamState>("LBFGS"),
                           kind<FusedSGD, FusedSGDState>("FusedSGD"),
                           kind<FusedAdamW, FusedAdamState>("FusedAdamW"),  // before its base
                           kind<FusedAdam, FusedAdamState>("FusedAdam")};

const Kind* kind_of(const Optimizer& optimizer) {
  for (const Kind& candidate : kinds) {
    if (candidate.fits(optimizer)) return &candidate;
  }
  return nullptr;
}

// Hyper-parameters go through the only door that all option classes have: LibTorch's archives.

// JSON has no infinity and no NaN; they are stored by name: {"double": "inf"}.
constexpr const char* named_double = "double";

json to_json(const torch::IValue& value) {
  if (value.isDouble()) {
    const double number = value.toDouble();
    if (std::isfinite(number)) return number;
    return json{{named_double, std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"}};
  }
  if (value.isInt()) return value.toInt();
  if (value.isBool()) return value.toBool();
  if (value.isString()) return value.toStringRef();
  if (value.isTuple()) {
    json list = json::array();
    for (const torch::IValue& element : value.toTupleRef().elements()) list.push_back(to_json(element));
    return list;
  }
  if (value.isNone()) return nullptr;
  throw Error{"an optimizer's option is a " + value.tagKind() + ", which a checkpoint cannot hold"};
}

torch::IValue from_json(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object()) return std::stod(value.at(named_double).get<std::string>());
  if (value.is_array()) {
    std::vector<torch::IValue> elements;
    for (const json& element : value) elements.push_back(from_json(element));
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  return {};
}

json options_of(const torch::optim::OptimizerOptions& options) {
  torch::serialize::OutputArchive out;
  options.serialize(out);
  std::stringstream stream;
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  json result = json::object();
  for (const std::string& name : in.keys()) {
    torch::IValue value;
    in.read(name, value);
    result[name] = to_json(value);
  }
  return result;
}

void set_options(torch::optim::OptimizerOptions& options, const json& stored) {
  torch::serialize::OutputArchive out;
  for (const auto& [name, value] : stored.items()) out.write(name, from_json(value));
  std::stringstream stream;
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  options.serialize(in);
}

/// Names of a group's parameters; what the module does not know is called by its place.
std::vector<std::string> names_of(const torch::optim::OptimizerParamGroup& group, std::size_t number,
                                  const ParameterNames& names) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < group.params().size(); ++i) {
    const auto found = names.find(group.params()[i].unsafeGetTensorImpl());
    result.push_back(found != names.end() ? found->second : fmt::format("group {} parameter {}", number, i));
  }
  return result;
}

}  // namespace

ParameterNames parameter_names(const torch::nn::Module* module) {
  ParameterNames names;
  if (module == nullptr) return names;
  for (const auto& parameter : module->named_parameters()) {
    names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
  }
  return names;
}

json store_optimizer(const Optimizer& optimizer, const ParameterNames& names, const std::string& prefix,
                     NamedTensors& tensors) {
  const Kind* kind = kind_of(optimizer);
  json stored{{"kind", kind != nullptr ? kind->name : own_archive}, {"groups", json::array()}};
  const auto& groups = optimizer.param_groups();
  const auto& state = optimizer.state();
  for (std::size_t number = 0; number < groups.size(); ++number) {
    const std::vector<std::string> group_names = names_of(groups[number], number, names);
    json group{{"parameters", group_names}};
    if (kind != nullptr) {
      group["options"] = options_of(groups[number].options());
      for (std::size_t i = 0; i < group_names.size(); ++i) {
        const auto found = state.find(groups[number].params()[i].unsafeGetTensorImpl());
        if (found != state.end()) kind->store(*found->second, prefix + "/" + group_names[i] + "/", tensors);
      }
    }
    stored["groups"].push_back(std::move(group));
  }
  if (kind == nullptr) {
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    const std::string bytes = stream.str();
    torch::Tensor blob = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(blob.data_ptr()));
    tensors.emplace_back(prefix + "/" + own_archive, std::move(blob));
  }
  return stored;
}

void restore_optimizer(Optimizer& optimizer, const ParameterNames& names, const std::string& prefix, const json& stored,
                       const Tensors& tensors, bool adopt) {
  const Kind* kind = kind_of(optimizer);
  const std::string kind_name = kind != nullptr ? kind->name : own_archive;
  if (stored.at("kind") != kind_name) {
    throw Error{"the checkpoint's " + prefix + " is of kind " + stored.at("kind").get<std::string>() +
                ", the program's of " + kind_name};
  }
  auto& groups = optimizer.param_groups();
  if (stored.at("groups").size() != groups.size()) {
    throw Error{fmt::format("the checkpoint's {} has {} parameter groups, the program's {}", prefix,
                            stored.at("groups").size(), groups.size())};
  }
  for (std::size_t number = 0; number < groups.size(); ++number) {
    if (stored.at("groups").at(number).at("parameters") != json(names_of(groups[number], number, names))) {
      throw Error{fmt::format("parameter group {} of {} has other parameters in the checkpoint than in the program",
                              number, prefix)};
    }
  }
  if (kind == nullptr) {
    const torch::Tensor& blob = tensors.at(prefix + "/" + own_archive);
    std::istringstream stream{std::string{static_cast<const char*>(blob.const_data_ptr()), blob.nbytes()}};
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    optimizer.state().clear();  // LibTorch's load replaces what is in the archive, and leaves the rest
    optimizer.load(archive);
    return;
  }
  optimizer.state().clear();
  for (std::size_t number = 0; number < groups.size(); ++number) {
    set_options(groups[number].options(), stored.at("groups").at(number).at("options"));
    const std::vector<std::string> group_names = names_of(groups[number], number, names);
    for (std::size_t i = 0; i < group_names.size(); ++i) {
      const torch::Tensor& parameter = groups[number].params()[i];
      auto state = kind->restore(parameter, prefix + "/" + group_names[i] + "/", tensors, adopt);
      if (state) optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
  }
}

}  // namespace torchup
