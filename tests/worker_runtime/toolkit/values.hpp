#pragma once

#include <torch/torch.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

/// A dictionary that crosses between the Python script that drives a test and the C++ program that replays it.
/// The script's side: torch.save of a list of dicts from names to tensors, numbers, strings and lists of these.
class Values {
 public:
  Values() = default;
  explicit Values(const c10::IValue& dictionary) : values_{dictionary.toGenericDict()} {}

  bool has(const std::string& name) const { return values_.contains(name); }
  c10::IValue value(const std::string& name) const {
    TORCH_CHECK(has(name), "the request has no ", name);
    return values_.at(name);
  }
  torch::Tensor tensor(const std::string& name) const { return value(name).toTensor(); }
  std::string text(const std::string& name) const { return value(name).toStringRef(); }
  int64_t integer(const std::string& name) const { return value(name).toInt(); }
  double real(const std::string& name) const { return value(name).toScalar().toDouble(); }
  bool flag(const std::string& name) const { return has(name) && value(name).toBool(); }
  std::vector<torch::Tensor> tensors(const std::string& name) const { return tensors_of(value(name)); }
  std::vector<double> reals(const std::string& name) const {
    std::vector<double> all;
    for (const c10::IValue& one : value(name).toListRef()) all.push_back(one.toScalar().toDouble());
    return all;
  }
  static std::vector<torch::Tensor> tensors_of(const c10::IValue& list) {
    std::vector<torch::Tensor> all;
    for (const c10::IValue& one : list.toListRef()) all.push_back(one.isNone() ? torch::Tensor{} : one.toTensor());
    return all;
  }

  /// Tensors go out as they are; undefined ones are left out.
  void put(const std::string& name, const torch::Tensor& tensor) {
    if (tensor.defined()) values_.insert_or_assign(name, tensor.detach().clone().cpu());
  }
  void put(const std::string& name, double number) { put(name, torch::tensor(number, torch::kDouble)); }
  void put(const std::string& name, const std::vector<double>& numbers) {
    put(name, torch::tensor(numbers, torch::kDouble));
  }
  void put(const std::string& name, const std::string& text) { values_.insert_or_assign(name, text); }
  void put_all(const std::string& prefix, const std::vector<torch::Tensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) put(prefix + std::to_string(i), tensors[i]);
  }
  c10::IValue as_value() const { return values_; }

 private:
  c10::impl::GenericDict values_{c10::StringType::get(), c10::AnyType::get()};
};

inline std::vector<Values> read_values(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  TORCH_CHECK(file, "cannot read ", path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>{file}, {}};
  std::vector<Values> all;
  const c10::IValue list = torch::pickle_load(bytes);  // owns what the loop walks
  for (const c10::IValue& one : list.toListRef()) all.emplace_back(one);
  return all;
}

inline void write_values(const std::string& path, const std::vector<Values>& all) {
  c10::impl::GenericList list{c10::AnyType::get()};
  for (const Values& one : all) list.push_back(one.as_value());
  const std::vector<char> bytes = torch::pickle_save(list);
  std::ofstream file{path, std::ios::binary};
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  TORCH_CHECK(file.flush(), "cannot write ", path);
}
