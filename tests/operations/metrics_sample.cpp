// What processes tell Prometheus, for tests in Python. `metrics_sample`: a sample of every metric, with names as
// strangers choose them. `metrics_sample --table`: of every metric a line, its name, type and labels.
#include <cstdio>
#include <string_view>

#include "tests/support/sample_metrics.hpp"

namespace {

using namespace torchup;

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

const char* type_text(MetricType type) {
  return type == MetricType::gauge ? "gauge" : type == MetricType::counter ? "counter" : "histogram";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view{argv[1]} == "--table") {
    for (const Metric& metric : all_metrics()) {
      print(std::string{metric.name} + " " + type_text(metric.type) + " " + std::string{metric.labels} + "\n");
    }
    return 0;
  }
  print(process_metrics(sample_process()) + coordinator_metrics(sample_coordinator()) + agent_metrics(sample_agent()));
  return 0;
}
