// Servers of language models by arithmetic: tensors, caches, and the command.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cachalot/errors.h"
#include "tests/tools/run_command.h"
#include "tests/tools/temporary_file.h"
#include "tools/serving/serving_fit.h"

namespace cachalot::tools {
namespace {

using testing::HasSubstr;

const std::string kData = CACHALOT_DATA_DIR "/serving/";

ServedModel model_of(const Json& config) {
  const TemporaryFile file(config.dump());
  return read_served_model(file.path());
}

ServedModel model_named(const std::string& name) { return read_served_model(kData + "models/" + name + ".json"); }

const Json kSmall = {
    {"model_type", "llama"}, {"hidden_size", 64},        {"intermediate_size", 128}, {"num_hidden_layers", 4},
    {"vocab_size", 1000},    {"num_attention_heads", 8}, {"num_key_value_heads", 2}, {"max_position_embeddings", 4096}};

Json small_with(const Json& more) {
  Json config = kSmall;
  config.update(more);
  return config;
}

// A router's biases and the norms of states are left out here: they are less than the tolerance.
void expect_parameters(const ServedModel& model, double parameters, const std::string& name) {
  EXPECT_NEAR(static_cast<double>(model.parameters()) / parameters, 1, 1e-4) << name;
}

TEST(ServedModel, HasAsManyParametersAsTransformersCounts) {
  const Json families = Json::parse(read_whole(kData + "families.json"));
  ASSERT_GT(families.size(), 20u);
  for (const Json& family : families)
    expect_parameters(model_of(family["config"]), family["parameters"], family["config"]["model_type"]);
  const Json models = Json::parse(read_whole(kData + "parameters.json"));
  for (const auto& [name, parameters] : models.items())
    expect_parameters(read_served_model(kData + "models/" + name), parameters, name);
}

std::string complaint_about(const std::string& content) {
  const TemporaryFile file(content);
  try {
    read_served_model(file.path());
    return "";
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find(file.path() + ": "), 0u) << message;
    return message.substr(file.path().size() + 2);
  }
}

TEST(ServedModel, IsRefusedWithTheKeyThatIsMissingOrWrong) {
  EXPECT_THAT(complaint_about(small_with({{"model_type", "bert"}}).dump()),
              HasSubstr("the model_type 'bert' is not known; known are llama, mistral"));
  EXPECT_EQ(complaint_about("{}"), "there is no 'model_type'");
  EXPECT_EQ(complaint_about(small_with({{"vocab_size", nullptr}}).dump()),
            "there is no 'vocab_size', which models of this type need");
  EXPECT_EQ(complaint_about(small_with({{"hidden_size", -1}}).dump()),
            "'hidden_size' is -1, and must be a whole number from 0 to 2^40");
  EXPECT_THAT(complaint_about(small_with({{"quantization_config", {{"quant_method", "q9"}}}}).dump()),
              HasSubstr("the quant_method 'q9' is not known; known are fp8"));
  const Json ignored = {{"quant_method", "fp8"}, {"ignore", {"re:(mlp"}}};
  EXPECT_EQ(complaint_about(small_with({{"quantization_config", ignored}}).dump()),
            "'re:(mlp' is not a regular expression");
  const Json by_row = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", -1}};
  EXPECT_EQ(complaint_about(small_with({{"quantization_config", by_row}}).dump()), "");
  EXPECT_EQ(complaint_about("[]"), "is not a config.json: it is not a JSON object");
}

TEST(ServedModel, IsRefusedWhereItsSizesAreNone) {
  const auto of = [](const Json& more) { return complaint_about(small_with(more).dump()); };
  EXPECT_EQ(of({{"hidden_size", 64.5}}), "'hidden_size' is 64.5, and must be a whole number from 0 to 2^40");
  EXPECT_EQ(of({{"intermediate_size", "128"}}),
            "'intermediate_size' is \"128\", and must be a whole number from 0 to 2^40");
  for (const char* name : {"vocab_size", "num_key_value_heads", "head_dim", "intermediate_size"})
    EXPECT_EQ(of({{name, 0}}), fmt::format("'{}' is 0, and must be 1 or more", name));
  EXPECT_EQ(of({{"num_key_value_heads", 3}}),
            "'num_attention_heads' is 8, which is no multiple of the 3 key-value heads");
  EXPECT_EQ(of({{"layer_types", {"full_attention"}}}), "'num_hidden_layers' is 4, and the types of 1 layers are told");
  EXPECT_EQ(of({{"tie_word_embeddings", "false"}}), "'tie_word_embeddings' is \"false\", and must be true or false");
  EXPECT_EQ(of({{"torch_dtype", "float8"}}), "the dtype 'float8' is not one of bfloat16, float16, float32");
  EXPECT_EQ(of({{"quantization_config", "fp8"}}), "'quantization_config' is \"fp8\", and must be an object");
  EXPECT_EQ(of({{"quantization_config", {{"quant_method", "gptq"}, {"bits", 0}}}}),
            "'bits' is 0, and must be from 1 to 16");
  EXPECT_EQ(of({{"vision_config", {{"hidden_size", 64}, {"depth", 1LL << 38}}}}),
            "274877906944 layers in 'vision_config' are no model");
  EXPECT_THROW(model_of(small_with({{"intermediate_size", 1LL << 40}})), InvalidArgument);
}

// The parameters that the models' pages tell.
TEST(ServedModel, HasTheParametersOfItsFamily) {
  const auto parameters = [](Json config, const Json& more) {
    config.update(more);
    return static_cast<double>(model_of(config).parameters()) / 1e9;
  };
  const Json olmo = {{"model_type", "olmo2"},    {"hidden_size", 5120},
                     {"num_hidden_layers", 64},  {"num_attention_heads", 40},
                     {"num_key_value_heads", 8}, {"intermediate_size", 27648},
                     {"vocab_size", 100352},     {"max_position_embeddings", 4096}};
  EXPECT_NEAR(parameters(olmo, Json::object()), 32.234, 0.001);
  EXPECT_NEAR(parameters(olmo, {{"model_type", "exaone4"}, {"intermediate_size", 27392}, {"vocab_size", 102400}}),
              32.00, 0.01);
  EXPECT_NEAR(parameters(olmo, {{"model_type", "cohere"},
                                {"hidden_size", 8192},
                                {"num_hidden_layers", 40},
                                {"num_attention_heads", 64},
                                {"num_key_value_heads", 64},
                                {"intermediate_size", 22528},
                                {"vocab_size", 256000}}),
              34.981, 0.001);
  const Json vision = {{"model_type", "qwen2_5_vl"}, {"depth", 32},
                       {"hidden_size", 1280},        {"intermediate_size", 3420},
                       {"patch_size", 14},           {"temporal_patch_size", 2},
                       {"spatial_merge_size", 2},    {"out_hidden_size", 3584}};
  EXPECT_NEAR(parameters(olmo, {{"model_type", "qwen2_5_vl"},
                                {"hidden_size", 3584},
                                {"num_hidden_layers", 28},
                                {"num_attention_heads", 28},
                                {"num_key_value_heads", 4},
                                {"intermediate_size", 18944},
                                {"vocab_size", 152064},
                                {"vision_config", vision}}),
              8.292, 0.001);
}

TEST(ServedModel, IsReadWithTheNumbersThatPythonWrites) {
  const std::string text = kSmall.dump();
  EXPECT_EQ(complaint_about(text.substr(0, text.size() - 1) + ", \"time_step_limit\": [0.0, Infinity]}"), "");
}

TEST(ServedModel, HasTheWeightsOfItsFiles) {
  const TemporaryFile folder;
  std::filesystem::create_directory(folder.path());
  std::ofstream(folder.path() + "/config.json") << kSmall.dump();
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a.norm.weight":{"dtype":"F16","shape":[50],"data_offsets":[0,100]},)"
      R"("a.up_proj.weight":{"dtype":"F16","shape":[10,50],"data_offsets":[100,1100]}})";
  std::ofstream file(folder.path() + "/model.safetensors", std::ios::binary);
  for (std::size_t i = 0; i < 8; ++i) file.put(static_cast<char>(header.size() >> (8 * i) & 0xff));
  file << header;
  file.close();
  const ServedModel model = read_served_model(folder.path());
  EXPECT_EQ(weight_bytes(model, Engine::vllm, 1), 1100u);
  EXPECT_EQ(weight_bytes(model, Engine::vllm, 2), 600u);  // each has the norm
  std::ofstream(folder.path() + "/model.safetensors") << "short";
  EXPECT_THROW(read_served_model(folder.path()), InvalidArgument);
}

TEST(Weights, AreQuantizedButForIgnoredModules) {
  const auto bytes = [](const Json& more) { return weight_bytes(model_of(small_with(more)), Engine::sglang, 1); };
  const std::uint64_t plain = bytes(Json::object());
  const std::uint64_t fp8 = bytes({{"quantization_config", {{"quant_method", "fp8"}}}});
  const std::uint64_t attention = 4 * 64 * (64 + 2 * 16 + 64);
  const std::uint64_t feed_forward = 4ULL * 3 * 64 * 128;
  EXPECT_EQ(plain - fp8, attention + feed_forward);
  const Json without = {{"quant_method", "fp8"}, {"modules_to_not_convert", {"model.layers.*.self_attn"}}};
  EXPECT_EQ(plain - bytes({{"quantization_config", without}}), feed_forward);
}

TEST(Weights, OfKeysAreOnEachGpuWhereThereAreMoreGpusThanHeads) {
  const ServedModel model = model_of(kSmall);
  // With twice as many GPUs all is halved but one of the two heads' keys and values, the norms, and sines and cosines.
  const std::uint64_t keys = 4ULL * 2 * 64 * 8 * 2;
  const std::uint64_t whole = 9ULL * 64 * 2 + 4096ULL * 8 * 2;
  EXPECT_EQ(2 * weight_bytes(model, Engine::vllm, 8) - weight_bytes(model, Engine::vllm, 4), keys + whole);
  EXPECT_THROW(weight_bytes(model, Engine::vllm, 3), InvalidArgument);
  // Key-value heads and the width of feed-forward layers must be divisible as well.
  EXPECT_THROW(
      weight_bytes(model_of(small_with({{"num_attention_heads", 12}, {"num_key_value_heads", 4}})), Engine::vllm, 6),
      InvalidArgument);
  EXPECT_THROW(weight_bytes(model_of(small_with({{"intermediate_size", 129}})), Engine::vllm, 2), InvalidArgument);
}

TEST(Weights, HaveSinesAndCosinesWhereTheEngineKeepsThem) {
  const std::uint64_t table = 4096ULL * 8 * 2;
  EXPECT_EQ(weight_bytes(model_of(kSmall), Engine::vllm, 1) - weight_bytes(model_of(kSmall), Engine::transformers, 1),
            table);
  // Gemma 3 has others for layers with a window.
  const ServedModel gemma = model_of(small_with({{"model_type", "gemma3_text"}, {"sliding_window", 512}}));
  EXPECT_EQ(weight_bytes(gemma, Engine::vllm, 1) - weight_bytes(gemma, Engine::transformers, 1), 2 * table);
}

TEST(Weights, OfLatentVectorsAreCopiedWhereAnEngineDoesNotViewThem) {
  ServedModel model = model_named("deepseek-v2-lite");
  const std::uint64_t copy = 27ULL * 512 * 16 * 256 * 2;
  const std::uint64_t viewed = weight_bytes(model, Engine::vllm, 1);
  EXPECT_EQ(weight_bytes(model, Engine::sglang, 1) - viewed, copy);
  model.quantization = quantization_named("fp8");
  EXPECT_EQ(weight_bytes(model, Engine::sglang, 1), weight_bytes(model, Engine::vllm, 1));
}

TEST(CachePool, HasTheBytesOfATokenOfEachKindOfAttention) {
  const auto bytes = [](const std::string& name, std::int64_t gpus, std::uint64_t element = 2) {
    return CachePool(model_named(name), Engine::vllm, gpus, element, 2048).token_bytes();
  };
  EXPECT_EQ(bytes("llama-3.1-8b", 1), 131072u);  // 32 layers, 8 heads of 128
  EXPECT_EQ(bytes("llama-3.1-8b", 2), 65536u);
  EXPECT_EQ(bytes("llama-3.1-8b", 16), 16384u);       // a head each
  EXPECT_EQ(bytes("llama-3.1-8b", 1, 1), 65536u);     // fp8
  EXPECT_EQ(bytes("deepseek-v3", 1), 61u * 576 * 2);  // latent vectors
  EXPECT_EQ(bytes("deepseek-v3", 8), 61u * 576 * 2);  // on each GPU
}

// gpt-oss-120b: 18 layers with a window of 128 tokens, 18 without.
TEST(CachePool, HoldsMoreRequestsWhereLayersHaveAWindow) {
  const ServedModel model = model_named("gpt-oss-120b");
  const CachePool pool(model, Engine::vllm, 1, 2, 2048);
  const std::uint64_t block = 18ULL * 16 * 8 * 64 * 2 * 2;
  // 8192 tokens are 512 blocks in one group, and in the other those of a window behind 2048 tokens: 137.
  EXPECT_DOUBLE_EQ(pool.requests(block * 649, 8192), 1);
  EXPECT_EQ(pool.longest(block * 649, 1, 1 << 20), 8192);
  EXPECT_EQ(pool.longest(block * 648, 1, 1 << 20), 8176);
  EXPECT_EQ(pool.tokens_by_blocks(block * 101), 50 * 16);
}

TEST(CachePool, HasRoomForAStateInABlock) {
  const CachePool pool(model_named("falcon-h1-1.5b"), Engine::vllm, 1, 2, 2048);
  const std::uint64_t state = (3072ULL * 256 + 3ULL * (3072 + 2 * 256)) * 2;
  EXPECT_EQ(pool.state_bytes(), 24 * state);
  const std::uint64_t tokens = (state + 16 * 1024 - 1) / (16 * 1024) * 16;  // 1024 bytes of a token and layer
  const std::uint64_t block = 24 * tokens * 1024;
  EXPECT_DOUBLE_EQ(pool.requests(block * 4, static_cast<std::int64_t>(2 * tokens)),
                   1);  // two of tokens, two of states
}

TEST(CachePool, KeepsStatesInTheTypeThatTheModelNames) {
  const Json config = {{"model_type", "mamba"}, {"hidden_size", 64}, {"num_hidden_layers", 1},
                       {"vocab_size", 100},     {"state_size", 16},  {"mamba_ssm_cache_dtype", "float32"}};
  const CachePool pool(model_of(config), Engine::vllm, 1, 2, 2048);
  EXPECT_EQ(pool.state_bytes(), 128u * (16 * 4 + 3 * 2));
}

TEST(CachePool, OfAModelOfStatesAloneHoldsRequestsOfAnyLength) {
  const Json config = {{"model_type", "mamba"},
                       {"hidden_size", 768},
                       {"num_hidden_layers", 32},
                       {"vocab_size", 50280},
                       {"state_size", 16}};
  const ServedModel model = model_of(config);
  for (const Engine engine : {Engine::vllm, Engine::sglang, Engine::transformers}) {
    const CachePool pool(model, engine, 1, 2, 2048);
    EXPECT_EQ(pool.token_bytes(), 0u);
    EXPECT_NEAR(pool.requests(100 * pool.state_bytes(), 1 << 20), 100, 1e-9) << name_of(engine);
  }
}

ServingQuestion on_h100(Engine engine) {
  ServingQuestion question;
  question.engine = engine;
  question.card.key = question.card.model = "h100";
  question.card.memory_bytes = 81004ULL << 20;
  return question;
}

TEST(ServingFit, SaysNoToACacheThatIsLargerThanTheGpu) {
  ServingQuestion question = on_h100(Engine::vllm);
  question.kv_cache_bytes = 40ULL << 30;
  EXPECT_TRUE(fit_by_arithmetic(model_named("qwen3-8b"), question).fits);
  question.kv_cache_bytes = 900ULL << 30;
  EXPECT_FALSE(fit_by_arithmetic(model_named("qwen3-8b"), question).fits);
}

TEST(ServingFit, GivesTheCacheWhatTheOthersLeave) {
  const ServingFit fit = fit_by_arithmetic(model_named("qwen3-8b"), on_h100(Engine::vllm));
  EXPECT_EQ(fit.budget_bytes, static_cast<std::uint64_t>(0.92 * static_cast<double>(81004ULL << 20)));
  EXPECT_EQ(fit.kv_bytes, fit.budget_bytes - fit.taken_bytes());
  EXPECT_EQ(fit.tokens, static_cast<std::int64_t>(fit.requests * 40960));
  EXPECT_TRUE(fit.fits);
  EXPECT_EQ(fit.longest, 40960);
}

TEST(ServingFit, IsUnsureWhereTheIntervalsDecide) {
  ServingQuestion question = on_h100(Engine::vllm);
  const ServedModel model = model_named("qwen3-8b");
  const ServingFit fit = fit_by_arithmetic(model, question);
  question.batch = static_cast<std::int64_t>(fit.requests);
  EXPECT_TRUE(fit_by_arithmetic(model, question).fits);
  EXPECT_TRUE(fit_by_arithmetic(model, question).is_unsure);
  question.batch = 1;
  EXPECT_FALSE(fit_by_arithmetic(model, question).is_unsure);
}

TEST(ServingFit, SetsAsideWhatSglangDoes) {
  ServingQuestion question = on_h100(Engine::sglang);
  const ServingFit fit = fit_by_arithmetic(model_named("qwen3-8b"), question);
  // 512 + 1.5 * 8192 + 2 * 256 + 128 MiB of 81004 leave 0.834.
  EXPECT_THAT(fit.budget_rule, HasSubstr("mem_fraction_static 0.834"));
  const auto usable = static_cast<double>(fit.budget_bytes);
  EXPECT_NEAR(static_cast<double>(fit.kv_bytes), 0.834 * usable - static_cast<double>(fit.parts[0].bytes), 4096);
  question.utilization = 0.5;
  EXPECT_LT(fit_by_arithmetic(model_named("qwen3-8b"), question).kv_bytes, fit.kv_bytes);
}

// Recorded from runs of Transformers 5.20.2 without flash-attn on a simulated H100.
TEST(ServingFit, SetsAsideWhatContinuousBatchingDoes) {
  const auto expect_tokens = [](const Json& config, double tokens) {
    const ServingFit fit = fit_by_arithmetic(model_of(config), on_h100(Engine::transformers));
    EXPECT_NEAR(static_cast<double>(fit.tokens) / tokens, 1, 0.03) << config;
    EXPECT_EQ(fit.budget_bytes - fit.taken_bytes(), fit.kv_bytes);
  };
  const Json tiny = {{"model_type", "llama"},  {"hidden_size", 256},       {"intermediate_size", 512},
                     {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                     {"vocab_size", 1024},     {"head_dim", 64},           {"max_position_embeddings", 4096}};
  expect_tokens(tiny, 4054528);
  Json larger = {{"model_type", "qwen3"},  {"hidden_size", 2048},       {"intermediate_size", 6144},
                 {"num_hidden_layers", 8}, {"num_attention_heads", 16}, {"num_key_value_heads", 4},
                 {"vocab_size", 65536},    {"head_dim", 128},           {"max_position_embeddings", 32768}};
  expect_tokens(larger, 1775360);
  larger.update({{"model_type", "gemma3_text"},
                 {"num_hidden_layers", 12},
                 {"num_attention_heads", 8},
                 {"vocab_size", 131072},
                 {"head_dim", 256},
                 {"sliding_window", 1024}});
  expect_tokens(larger, 1238763);
}

TEST(ServingFit, LeavesToARequestWithStatesWhatIsLeft) {
  const ServingFit fit = fit_by_arithmetic(model_named("deepseek-v2-lite"), on_h100(Engine::transformers));
  EXPECT_THAT(fit.parts[1].rule, HasSubstr("the widest layer for 2048 tokens"));  // not batched continuously
}

TEST(ServingFit, RefusesAContextBeyondTheModels) {
  ServingQuestion question = on_h100(Engine::vllm);
  question.max_model_len = 1 << 20;
  EXPECT_THROW(fit_by_arithmetic(model_named("qwen3-8b"), question), InvalidArgument);
}

Outcome fit(const std::string& arguments) {
  return run_command(fmt::format("'{}' fit {}", CACHALOT_COMMAND, arguments));
}

std::string of_model(const std::string& name, const std::string& more) {
  return fmt::format("--engine vllm --model '{}models/{}.json' {}", kData, name, more);
}

TEST(FitOfAServer, TakesSeveralGpusAsTensorParallelism) {
  const Outcome outcome = fit(of_model("qwen3-32b", "--gpu h100x2 --json -"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["by"], "arithmetic");
  EXPECT_EQ(json["results"][0]["gpus"], 2);
  EXPECT_EQ(Json::parse(fit(of_model("qwen3-32b", "--gpu h100 --tensor-parallel 2 --json -")).out)["results"],
            json["results"]);
}

TEST(FitOfAServer, HasARowForEachGpuAndValue) {
  const Outcome outcome =
      fit(of_model("qwen3-8b", "--gpu h100 --gpu t4 --vary quantization=none,fp8 --vary batch=1..2"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("GPU   quantization  batch"));
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 10);
}

TEST(FitOfAServer, WritesAPage) {
  const TemporaryFile page;
  const Outcome outcome = fit(of_model("qwen3-8b", fmt::format("--gpu h100 --by arithmetic --html '{}'", page.path())));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(read_whole(page.path()).starts_with("<!doctype html>"));
  EXPECT_EQ(fit(of_model("qwen3-8b", "--gpu h100 --by arithmetic --html /no/such/folder/page.html")).err,
            "cachalot: --html /no/such/folder/page.html: cannot write the file: No such file or directory\n");
}

TEST(FitOfAServer, RefusesWhatDoesNotGoTogether) {
  const auto complaint = [](const std::string& arguments) {
    const Outcome outcome = fit(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    return outcome.err;
  };
  EXPECT_EQ(complaint("--model x"), "cachalot: --model and other options of a server need --engine\n");
  EXPECT_EQ(complaint("--engine vllm"), "cachalot: --engine needs --model, a config.json or the folder with it\n");
  EXPECT_EQ(complaint(of_model("qwen3-8b", "train.py")),
            "cachalot: --engine vllm takes the place of a program, and 'train.py' is one\n");
  EXPECT_EQ(complaint(of_model("qwen3-8b", "--gpu h100x2 --tensor-parallel 4")),
            "cachalot: --gpu h100x2 and --tensor-parallel 4 both say how many GPUs share the model: give one\n");
  EXPECT_THAT(complaint(of_model("qwen3-8b", "--vary seq=1,2")), HasSubstr("a server has no 'seq'"));
}

}  // namespace
}  // namespace cachalot::tools
