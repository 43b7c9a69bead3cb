#include "launcher/core/machine/devices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

/// The number a text begins with, as C's strtoul reads it; -1 when it begins with none.
int leading_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} ? number : -1;
}

/// Everything that can be named by a UUID.
std::vector<Device> named_devices(const Gpus& gpus) {
  std::vector<Device> all;
  for (std::size_t index = 0; index < gpus.list.size(); ++index) {
    const Gpu& gpu = gpus.list[index];
    if (!gpu.mig_enabled) all.push_back({index, gpu.uuid});
    for (const std::string& instance : gpu.mig_instances) all.push_back({index, instance});
  }
  return all;
}

/// The one device whose id begins with `beginning`.
std::optional<Device> find_by_beginning(const std::vector<Device>& all, std::string_view beginning) {
  std::optional<Device> found;
  for (const Device& device : all) {
    if (device.id == beginning) return device;
    if (!std::string_view{device.id}.starts_with(beginning)) continue;
    if (found) return std::nullopt;
    found = device;
  }
  return found;
}

bool is_uuid(std::string_view text) { return text.starts_with("GPU-") || text.starts_with("MIG-"); }

bool usable(const Gpu& gpu) { return !gpu.mig_enabled || !gpu.mig_instances.empty(); }

bool is_instance(const Gpus& gpus, const Device& device) { return gpus.list[device.gpu].mig_enabled; }

std::string describe(const Gpus& gpus, const std::vector<Device>& devices) {
  if (devices.empty()) return gpus.problem.empty() ? "no GPU is visible" : gpus.problem;
  std::string text = devices.size() == 1 ? "visible is" : "visible are";
  for (std::size_t index = 0; index < devices.size(); ++index) {
    const Gpu& gpu = gpus.list[devices[index].gpu];
    const std::string& uuid = is_uuid(devices[index].id) ? devices[index].id : gpu.uuid;
    text += fmt::format("{}{} ({}, {})", index == 0 ? " " : ", ", index, gpu.name, uuid);
  }
  return text;
}

}  // namespace

std::vector<Device> visible_devices(const Gpus& gpus, std::optional<std::string_view> cuda_visible_devices) {
  std::vector<Device> devices;
  if (!cuda_visible_devices) {
    for (std::size_t index = 0; index < gpus.list.size(); ++index) {
      if (usable(gpus.list[index])) devices.push_back({index, std::to_string(index)});
    }
    return devices;
  }

  const auto seen = [&devices](std::string_view id) {
    return std::any_of(devices.begin(), devices.end(), [id](const Device& device) { return device.id == id; });
  };
  const bool by_uuid = is_uuid(*cuda_visible_devices);
  const std::string_view kind = cuda_visible_devices->substr(0, 4);
  const std::vector<Device> all = by_uuid ? named_devices(gpus) : std::vector<Device>{};
  for (const std::string_view part : split(*cuda_visible_devices, ',')) {
    if (by_uuid) {
      if (!part.starts_with(kind)) break;
      const std::optional<Device> device = find_by_beginning(all, part);
      if (!device) break;
      if (seen(device->id)) return {};
      devices.push_back(*device);
    } else {
      const int number = leading_number(stripped(part));
      if (number < 0) break;
      if (seen(std::to_string(number))) return {};
      const auto index = static_cast<std::size_t>(number);
      if (index >= gpus.list.size() || !usable(gpus.list[index])) break;
      devices.push_back({index, std::to_string(number)});
    }
  }
  return devices;
}

int usable_in_one_process(const Gpus& gpus, const std::vector<Device>& devices) {
  const bool split_gpu =
      std::any_of(devices.begin(), devices.end(), [&gpus](const Device& device) { return is_instance(gpus, device); });
  return split_gpu ? 1 : static_cast<int>(devices.size());
}

Result<std::vector<Device>> choose_devices(std::string_view list, const Gpus& gpus,
                                           const std::vector<Device>& visible) {
  // Each visible device by its UUID too: an index in `visible` stands for a GPU, or for its first instance.
  std::vector<Device> named;
  for (const Device& device : visible) {
    const Gpu& gpu = gpus.list[device.gpu];
    if (is_uuid(device.id))
      named.push_back(device);
    else if (!gpu.mig_enabled)
      named.push_back({device.gpu, gpu.uuid});
    else
      for (const std::string& instance : gpu.mig_instances) named.push_back({device.gpu, instance});
  }

  std::vector<Device> choice;
  for (const std::string_view whole : split(list, ',')) {
    const std::string_view part = stripped(whole);
    std::optional<Device> device;
    errc why_none = errc::refused;
    if (is_uuid(part)) {
      device = find_by_beginning(named, part);
    } else {
      std::size_t index = 0;
      const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
      if (error != std::errc{} || end != part.data() + part.size()) {
        why_none = errc::bad_value;  // no machine has one of that name
      } else if (index < visible.size()) {
        device = visible[index];
      }
    }
    if (!device) return fail(why_none, "--gpus: no GPU '" + std::string{part} + "' here: " + describe(gpus, visible));
    if (std::find(choice.begin(), choice.end(), *device) != choice.end()) {
      return fail(errc::bad_value, "--gpus: '" + std::string{part} + "' comes twice");
    }
    choice.push_back(*device);
  }
  // CUDA reads indices or UUIDs, never both.
  if (std::any_of(choice.begin(), choice.end(), [](const Device& device) { return is_uuid(device.id); })) {
    for (Device& device : choice) {
      const Gpu& gpu = gpus.list[device.gpu];
      if (!is_uuid(device.id)) device.id = gpu.mig_enabled ? gpu.mig_instances.front() : gpu.uuid;
    }
  }
  return choice;
}

std::string to_variable(const std::vector<Device>& choice) {
  std::string value;
  for (const Device& device : choice) value += (value.empty() ? "" : ",") + device.id;
  return value;
}

Result<std::vector<std::pair<std::string, std::string>>> virtual_rank_variables(
    LocalRank local_rank, std::optional<std::string_view> cuda_visible_devices,
    std::optional<std::string_view> hip_visible_devices) {
  const bool hip = hip_visible_devices && !hip_visible_devices->empty();
  const std::optional<std::string_view> list = hip ? hip_visible_devices : cuda_visible_devices;
  std::string own = std::to_string(local_rank.value());
  if (list) {
    const std::vector<std::string_view> entries = split(*list, ',');
    if (static_cast<std::size_t>(local_rank.value()) >= entries.size()) {
      return fail(errc::bad_value, "local_rank " + own + " exceeds available GPUs in " +
                                       (hip ? "HIP_VISIBLE_DEVICES=" : "CUDA_VISIBLE_DEVICES=") + std::string{*list});
    }
    own = stripped(entries[static_cast<std::size_t>(local_rank.value())]);
  }
  std::vector<std::pair<std::string, std::string>> variables{{"CUDA_VISIBLE_DEVICES", own}};
  if (hip) variables.emplace_back("HIP_VISIBLE_DEVICES", own);
  return variables;
}

}  // namespace torchup
