#include "tools/serving/serving_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/errors.h"

namespace cachalot::tools {
namespace {

constexpr std::uint64_t kGib = 1ULL << 30;

std::uint64_t scaled(std::uint64_t bytes, double by) {
  return static_cast<std::uint64_t>(static_cast<double>(bytes) * by);
}
std::uint64_t rest(std::uint64_t budget, std::uint64_t taken) { return budget - std::min(budget, taken); }
std::uint64_t gib(double count) { return scaled(kGib, count); }

ServingPart exact(std::string key, std::uint64_t bytes, std::string rule) {
  return {std::move(key), bytes, bytes, bytes, std::move(rule)};
}
ServingPart estimate(std::string key, std::uint64_t bytes, double least, double most, std::string rule) {
  return {std::move(key), bytes, scaled(bytes, least), scaled(bytes, most), std::move(rule)};
}

// The defaults of engines on GPUs with at least `gib` of memory.
struct EngineDefaults {
  double gib;
  std::int64_t batched_tokens;  // of prefill, at a time
  std::int64_t requests;        // at a time; for SGLang the largest graph
  std::int64_t many_requests;   // the same with four GPUs or more
};

// vLLM 0.33, EngineArgs.get_batch_defaults for a server; not of an A100 and a GB10.
constexpr std::array kVllm{EngineDefaults{160, 16384, 1024, 1024}, EngineDefaults{70, 8192, 1024, 1024},
                           EngineDefaults{0, 2048, 256, 256}};
// SGLang, ServerArgs._handle_gpu_memory_settings.
constexpr std::array kSglang{EngineDefaults{160, 16384, 512, 512}, EngineDefaults{60, 8192, 256, 512},
                             EngineDefaults{35, 4096, 32, 160}, EngineDefaults{20, 2048, 24, 80},
                             EngineDefaults{0, 2048, 8, 8}};

template <typename Table>
EngineDefaults defaults_in(const Table& table, double gib) {
  return *std::ranges::find_if(table, [&](const EngineDefaults& row) { return gib >= row.gib; });
}

EngineDefaults defaults_of(const ServingQuestion& question) {
  double size = static_cast<double>(question.card.memory_bytes) / static_cast<double>(kGib);
  if (question.engine == Engine::sglang) return defaults_in(kSglang, size);
  const std::string& model = question.card.model;
  if (model.starts_with("a100") || model == "gb10") size = 0;
  EngineDefaults defaults = defaults_in(kVllm, size);
  if (question.max_num_seqs) defaults.requests = *question.max_num_seqs;
  return defaults;
}

// The widest moment of a layer: what a token has before, within and behind the matrices of its feed-forward part.
std::uint64_t token_activations(const ServedModel& model, std::int64_t gpus) {
  constexpr std::int64_t kCopies = 3;
  const std::int64_t dense = kCopies * (model.inner / gpus + model.hidden);
  const std::int64_t experts = model.active_experts * (kCopies * model.expert_inner / gpus + model.hidden);
  return static_cast<std::uint64_t>(std::max(dense, experts)) * model.dtype_bytes;
}

// The output layer's logits of each request, with their copies while tokens are sampled.
constexpr std::int64_t kSamplingBytes = 20;

ServingPart vllm_activations(const ServedModel& model, const ServingQuestion& question) {
  const EngineDefaults defaults = defaults_of(question);
  const auto prefill = static_cast<std::uint64_t>(defaults.batched_tokens) * token_activations(model, question.gpus);
  const auto sampling = static_cast<std::uint64_t>(defaults.requests * model.vocabulary * kSamplingBytes);
  constexpr double kLeast = 0.5;
  constexpr double kMost = 2;
  return estimate("activations", std::max(prefill, sampling), kLeast, kMost,
                  prefill > sampling ? fmt::format("the widest layer for {} tokens of prefill", defaults.batched_tokens)
                                     : fmt::format("sampling for {} requests", defaults.requests));
}

// Sizes of batches: 1, 2, 4, each eighth up to 256, each sixteenth up to 512.
std::int64_t sizes_up_to(std::int64_t most) {
  constexpr std::int64_t kFine = 256;
  constexpr std::int64_t kMost = 512;
  std::int64_t count = 0;
  for (const std::int64_t size : {1, 2, 4}) count += size <= most ? 1 : 0;
  for (std::int64_t size = 8; size <= std::min(most, kMost); size += size < kFine ? 8 : 16) ++count;
  return count;
}

ServingPart vllm_graphs(const ServedModel& model, const ServingQuestion& question) {
  const std::int64_t requests = defaults_of(question).requests;
  const std::int64_t graphs = sizes_up_to(2 * requests) + sizes_up_to(requests);
  constexpr double kLayerMib = 0.2;  // of a graph's layer
  constexpr double kLeast = 0.4;
  constexpr double kMost = 1.6;
  const auto layers = static_cast<std::int64_t>(model.layers.size());
  const double bytes = kLayerMib * static_cast<double>(graphs * layers) * static_cast<double>(kMiB);
  return estimate("graphs", static_cast<std::uint64_t>(bytes), kLeast, kMost,
                  fmt::format("{} graphs of {} layers, {} MiB each layer", graphs, layers, kLayerMib));
}

ServingPart vllm_other(const ServingQuestion& question) {
  if (question.gpus == 1) return {"other", gib(0.3), 0, gib(0.8), "cuBLAS and other libraries"};
  return {"other", gib(1.5), gib(0.6), gib(2.5), "NCCL, cuBLAS and other libraries"};
}

void apply_vllm(const ServedModel& model, ServingFit& fit) {
  const double utilization = fit.question.utilization.value_or(0.92);
  fit.budget_bytes = scaled(fit.question.card.memory_bytes, utilization);
  fit.budget_rule = fmt::format("gpu_memory_utilization {}", utilization);
  fit.parts.push_back(vllm_activations(model, fit.question));
  fit.parts.push_back(vllm_graphs(model, fit.question));
  fit.parts.push_back(vllm_other(fit.question));
}

constexpr double kContextGib = 0.6;  // of CUDA, before an engine looks at the memory that is free

// Takes the memory that SGLang sets aside, which it does not measure.
void apply_sglang(ServingFit& fit) {
  const ServingQuestion& question = fit.question;
  const EngineDefaults defaults = defaults_of(question);
  constexpr std::int64_t kManyGpus = 4;
  const std::int64_t largest_graph = question.gpus < kManyGpus ? defaults.requests : defaults.many_requests;
  const std::uint64_t memory = question.card.memory_bytes;
  const std::uint64_t activations = kMiB * static_cast<std::uint64_t>(defaults.batched_tokens) * 3 / 2;
  const std::uint64_t graphs = kMiB * static_cast<std::uint64_t>(largest_graph) * 2;
  const std::uint64_t least = memory > 60 * kGib ? 10 * kGib : 0;
  std::uint64_t other = kMiB * (512 + static_cast<std::uint64_t>(question.gpus) * 128);
  other = std::max(activations + graphs + other, least) - activations - graphs;
  constexpr double kThousand = 1000;
  const double free = 1 - static_cast<double>(activations + graphs + other) / static_cast<double>(memory);
  const double fraction = question.utilization.value_or(std::round(free * kThousand) / kThousand);
  const std::uint64_t usable = memory - std::min(memory, gib(kContextGib));
  fit.budget_bytes = usable;
  fit.budget_rule = fmt::format("what is free at the start, with mem_fraction_static {}", fraction);
  const std::uint64_t reserve = scaled(usable, 1 - fraction);
  fit.parts.push_back(
      exact("activations", std::min(activations, reserve), "SGLang's reserve, 1.5 MiB for each token of prefill"));
  fit.parts.push_back(
      exact("graphs", std::min(graphs, reserve - fit.parts.back().bytes), "SGLang's reserve, 2 MiB for each request"));
  fit.parts.push_back(
      exact("other", reserve - fit.parts[1].bytes - fit.parts[2].bytes, "the rest of SGLang's reserve"));
}

// Returns the bytes of the cache that continuous batching makes. Transformers 5.20 (PagedAttentionMemoryHandler) sets memory aside for the
// tokens of a batch, and for each token of the cache: attention without the package flash-attn repeats keys and values for each
// query head, and has a mask of all pairs of these tokens.
std::uint64_t paged_cache_bytes(const ServedModel& model, const CachePool& pool, std::uint64_t available) {
  constexpr double kBatch = 8192;
  constexpr double kLogitRows = 1024;
  constexpr double kIndexBytes = 8;
  constexpr double kTableBytes = 8 * 4;
  const auto element = static_cast<double>(model.dtype_bytes);
  const auto head = static_cast<double>(model.layers.front().token_elements) / 2;
  const auto heads = static_cast<double>(model.heads);
  const auto kv_heads = static_cast<double>(model.kv_heads);
  const auto kinds = static_cast<double>(pool.kinds());
  const double read = (2 * heads + kv_heads) * head * element;
  const double new_token = (static_cast<double>(model.hidden) + (heads + 2 * kv_heads) * head) * element;
  const double masks = pool.has_windows() ? 2 : 1;
  const double logits = static_cast<double>(model.hidden) * element + static_cast<double>(model.vocabulary) * 4;
  const double fixed = 2 * static_cast<double>(pool.sector_bytes()) + kLogitRows * logits +
                       kBatch * (read + new_token + kTableBytes + 2 * kinds * kIndexBytes) +
                       masks * element * kBatch * kBatch;
  const double of_token = read + kinds * kIndexBytes + masks * element * kBatch;
  const double share = 1 + of_token / static_cast<double>(pool.least_token_bytes());
  const double bytes = std::max(0.0, static_cast<double>(available) - fixed) / share;
  return static_cast<std::uint64_t>(bytes) / pool.sector_bytes() * pool.sector_bytes();
}

// Models with states are not batched continuously: a request is read at once.
void apply_transformers(const ServedModel& model, const CachePool& pool, ServingFit& fit) {
  constexpr double kShare = 0.9;
  constexpr std::int64_t kPrefill = 2048;
  const std::uint64_t memory = rest(fit.question.card.memory_bytes, gib(kContextGib));
  const std::uint64_t weights = fit.parts.front().bytes;
  const double share = fit.question.utilization.value_or(kShare);
  const std::uint64_t available = scaled(rest(memory, weights), share);
  fit.budget_bytes = std::min(memory, weights) + available;
  fit.budget_rule = fmt::format("the weights and max_memory_percent {} of the rest, in continuous batching", share);
  if (pool.is_paged()) {
    fit.parts.push_back(exact("activations", available - paged_cache_bytes(model, pool, available),
                              "what continuous batching sets aside, without flash-attn"));
  } else {
    const std::uint64_t bytes = kPrefill * token_activations(model, fit.question.gpus);
    fit.parts.push_back(
        estimate("activations", bytes, 0.5, 4, fmt::format("the widest layer for {} tokens", kPrefill)));
  }
  fit.parts.push_back(exact("graphs", 0, "none by default"));
  fit.parts.push_back(exact("other", 0, "cuBLAS and other libraries take of what is left"));
}

std::string weights_rule(const ServedModel& model, std::int64_t gpus) {
  std::string rule = model.stored.empty()
                         ? fmt::format("{:.2f} billion parameters", static_cast<double>(model.parameters()) / 1e9)
                         : "the headers of *.safetensors";
  if (!model.quantization.method.empty()) {
    rule += fmt::format(", {} of {:.2f} bits{}", model.quantization.method, model.quantization.bits,
                        model.quantization.experts_alone ? " for experts" : "");
  }
  if (gpus > 1) rule += fmt::format(", divided by {} but for norms and routers", gpus);
  return rule;
}

std::uint64_t element_bytes_of(const ServedModel& model, const std::string& dtype) {
  return dtype.starts_with("fp8") ? 1 : model.dtype_bytes;
}

// Returns whether the requests fit in a cache of `kv_bytes`.
bool answer(const CachePool& pool, std::uint64_t kv_bytes, std::int64_t length, std::int64_t batch) {
  return pool.requests(kv_bytes, length) >= static_cast<double>(batch);
}

void apply_cache(const CachePool& pool, std::int64_t longest, ServingFit& fit) {
  const ServingQuestion& question = fit.question;
  fit.kv_bytes = question.kv_cache_bytes.value_or(rest(fit.budget_bytes, fit.taken_bytes()));
  fit.kv_token_bytes = pool.token_bytes();
  fit.state_bytes = pool.state_bytes();
  fit.requests = pool.requests(fit.kv_bytes, fit.max_model_len);
  fit.tokens = static_cast<std::int64_t>(std::min(fit.requests * static_cast<double>(fit.max_model_len), 1e15));
  fit.tokens_by_blocks = pool.tokens_by_blocks(fit.kv_bytes);
  fit.longest = pool.longest(fit.kv_bytes, question.batch, longest);
  fit.fits = answer(pool, fit.kv_bytes, fit.max_model_len, question.batch);
  if (question.kv_cache_bytes) {
    fit.fits = fit.fits && *question.kv_cache_bytes <= rest(question.card.memory_bytes, fit.taken_bytes());
    return;
  }
  std::uint64_t least = 0;
  std::uint64_t most = 0;
  for (const ServingPart& part : fit.parts) {
    least += part.least;
    most += part.most;
  }
  fit.is_unsure = answer(pool, rest(fit.budget_bytes, least), fit.max_model_len, question.batch) !=
                  answer(pool, rest(fit.budget_bytes, most), fit.max_model_len, question.batch);
}

}  // namespace

std::uint64_t ServingFit::taken_bytes() const {
  std::uint64_t all = 0;
  for (const ServingPart& part : parts) all += part.bytes;
  return all;
}

ServingFit fit_by_arithmetic(const ServedModel& given, const ServingQuestion& question) {
  ServedModel model = given;
  if (!question.quantization.empty()) {
    model.quantization = quantization_named(question.quantization);
    model.stored.clear();
  }
  ServingFit fit;
  fit.question = question;
  constexpr std::int64_t kLongest = 1 << 20;
  const std::int64_t longest = model.max_positions > 0 ? model.max_positions : kLongest;
  fit.max_model_len = question.max_model_len.value_or(longest);
  CACHALOT_REQUIRE(fit.max_model_len <= longest || model.max_positions == 0,
                   "--max-model-len {} is more than the {} positions of {}", fit.max_model_len, longest, model.path);
  const std::uint64_t element = element_bytes_of(model, question.kv_cache_dtype);
  // vLLM prepares a batch while another one is computed.
  constexpr std::int64_t kBatchesInFlight = 2;
  const CachePool pool(model, question.engine, question.gpus, element,
                       kBatchesInFlight * defaults_of(question).batched_tokens);
  const std::uint64_t weights = weight_bytes(model, question.engine, question.gpus);
  fit.parts.push_back(exact("weights", weights, weights_rule(model, question.gpus)));
  switch (question.engine) {
    case Engine::vllm:
      apply_vllm(model, fit);
      break;
    case Engine::sglang:
      apply_sglang(fit);
      break;
    case Engine::transformers:
      apply_transformers(model, pool, fit);
      break;
  }
  if (question.kv_cache_bytes) fit.budget_rule = "--kv-cache-memory";
  fit.kv_rule = fmt::format("keys and values of {} layers, {} bytes each number", model.layers.size(), element);
  apply_cache(pool, longest, fit);
  return fit;
}

}  // namespace cachalot::tools
