// Categories, places, peaks and timelines of histories.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/analysis/history_builder.h"
#include "tests/tools/complaint.h"
#include "tests/tools/temporary_file.h"
#include "tools/analysis/categories.h"
#include "tools/analysis/sites.h"
#include "tools/analysis/timeline.h"

namespace cachalot::tools {
namespace {

using Action = HistoryEvent::Action;

constexpr std::uint64_t kBlock = 512;

std::vector<std::string> names(HistoryBuilder& builder, const CategoryRules& rules = built_in_rules()) {
  Categorizer categorizer(builder.history(), rules);
  std::vector<std::string> names;
  for (const Category category : categorizer.categories_of(Timeline(builder.history(), builder.device())))
    names.emplace_back(categorizer.name_of(category));
  return names;
}

TEST(Glob, AStarStandsForAnything) {
  EXPECT_TRUE(matches_glob("*/torch/optim/*", "/lib/torch/optim/adam.py"));
  EXPECT_TRUE(matches_glob("step", "step"));
  EXPECT_TRUE(matches_glob("*", ""));
  EXPECT_TRUE(matches_glob("a*b*c", "aXbYbZc"));
  EXPECT_FALSE(matches_glob("step", "steps"));
  EXPECT_FALSE(matches_glob("a*b", "aXbY"));
  EXPECT_FALSE(matches_glob("", "x"));
}

// Two steps of a training: its stacks name no kind of memory, lifetimes do.
TEST(Categories, LifetimesTellWhatThePhasesOfATrainingMade) {
  HistoryBuilder train;
  const StackId setup = train.stack({{"/lib/torch/nn/modules/module.py", "_apply"}, {"train.py", "<module>"}});
  const StackId forward =
      train.stack({{"/app/model.py", "forward", 7}, {"/lib/torch/nn/modules/module.py", "_call_impl"}});
  const StackId backward = train.stack({{"", "torch::autograd::Engine::evaluate_function(int)"}});
  const StackId step = train.stack({{"/lib/torch/optim/adamw.py", "step"}, {"train.py", "<module>"}});
  train.alloc(0x1000, 4 * kBlock, setup);  // parameter
  for (int i = 0; i < 2; ++i) {
    train.alloc(0x2000, kBlock, forward);  // activation
    train.alloc(0x3000, kBlock, forward);  // temporary
    train.free(0x3000, kBlock);
    train.alloc(0x4000, kBlock, backward);  // gradient
    train.alloc(0x5000, kBlock, backward);  // temporary
    train.free(0x5000, kBlock);
    train.free(0x2000, kBlock);
    if (i == 0) train.alloc(0x6000, kBlock, step);  // optimizer state
    train.alloc(0x7000, kBlock, step);              // temporary
    train.free(0x7000, kBlock);
    train.free(0x4000, kBlock);
  }
  EXPECT_EQ(names(train), (std::vector<std::string>{"parameters", "activations", "temporaries", "gradients",
                                                    "temporaries", "optimizer state", "temporaries", "activations",
                                                    "temporaries", "gradients", "temporaries", "temporaries"}));
}

// SGD allocates nothing: what a step frees is gone before the next allocation.
TEST(Categories, GradientsOfAStepThatAllocatesNothingAreKnownByTheirSizes) {
  HistoryBuilder train;
  const StackId setup = train.stack({{"/lib/torch/nn/modules/module.py", "_apply"}, {"train.py", "<module>"}});
  const StackId forward = train.stack({{"/app/model.py", "forward"}});
  const StackId backward = train.stack({{"", "torch::autograd::Engine::evaluate_function(int)"}});
  train.alloc(0x1000, 4 * kBlock, setup);
  for (int i = 0; i < 2; ++i) {
    train.alloc(0x2000, kBlock, forward);
    train.alloc(0x4000, kBlock, backward);      // of no parameter's size
    train.alloc(0x5000, 4 * kBlock, backward);  // freed in the pass
    train.free(0x5000, 4 * kBlock);
    train.alloc(0x6000, 4 * kBlock, backward);
    train.free(0x4000, kBlock);
    train.free(0x2000, kBlock);
    train.free(0x6000, 4 * kBlock);
  }
  const std::vector<std::string> of_step = {"activations", "temporaries", "temporaries", "gradients"};
  std::vector<std::string> expected = {"parameters"};
  for (int i = 0; i < 2; ++i) expected.insert(expected.end(), of_step.begin(), of_step.end());
  EXPECT_EQ(names(train), expected);
}

TEST(Categories, AModuleThatIsMadeInAForwardPassDoesNotEndIt) {
  HistoryBuilder train;
  const StackId forward = train.stack({{"/app/model.py", "forward"}});
  const StackId made = train.stack(
      {{"/lib/torch/nn/modules/linear.py", "__init__"}, {"/app/model.py", "forward"}, {"t.py", "<module>"}});
  const StackId backward = train.stack({{"", "torch::autograd::Engine::thread_main()"}});
  for (int layer = 0; layer < 4; ++layer) {
    train.alloc(0x1000 * static_cast<Address>(layer + 1), kBlock, forward);
    train.alloc(0x9000, kBlock, made);
    train.free(0x9000, kBlock);
  }
  train.alloc(0xa000, kBlock, backward);
  const std::vector<std::string> found = names(train);
  for (std::size_t layer = 0; layer < 4; ++layer) EXPECT_EQ(found[2 * layer], "activations");
}

TEST(Categories, WhatIsThereAfterTwoBackwardPassesIsKept) {
  HistoryBuilder train;
  const StackId forward = train.stack({{"/app/model.py", "forward"}});
  const StackId backward = train.stack({{"", "torch::autograd::Engine::thread_main()"}});
  train.alloc(0x1000, kBlock, forward);
  for (int i = 0; i < 3; ++i) {
    train.alloc(0x2000, kBlock, backward);
    train.free(0x2000, kBlock);
    train.alloc(0x3000, kBlock, forward);
    train.free(0x3000, kBlock);
  }
  train.free(0x1000, kBlock);
  EXPECT_EQ(names(train).front(), "kept");
}

// A GAN's images are used by two backward passes of an iteration, and are gone in the next one.
TEST(Categories, WhatComesAgainAfterTwoBackwardPassesIsNotKept) {
  HistoryBuilder train;
  const StackId forward = train.stack({{"/app/generator.py", "forward"}});
  const StackId other = train.stack({{"/app/discriminator.py", "forward"}});
  const StackId backward = train.stack({{"", "torch::autograd::Engine::thread_main()"}});
  for (Address i = 0; i < 6; ++i) {
    train.alloc(0x10000 + 0x1000 * i, kBlock, forward);
    if (i > 0) train.free(0x10000 + 0x1000 * (i - 1), kBlock);
    for (int pass = 0; pass < 2; ++pass) {
      train.alloc(0x2000, kBlock, other);
      train.alloc(0x3000, kBlock, backward);
      train.free(0x3000, kBlock);
      train.free(0x2000, kBlock);
    }
  }
  EXPECT_EQ(names(train).front(), "activations");
}

TEST(Categories, WhatLivesAtTheEndIsWhatItsStackMadeBefore) {
  HistoryBuilder train;
  const StackId backward = train.stack({{"", "torch::autograd::Engine::thread_main()"}});
  const StackId gradient = train.stack({{"", "torch::autograd::AccumulateGrad::apply"}});
  const StackId forward = train.stack({{"/app/model.py", "forward"}});
  train.alloc(0x1000, kBlock, backward);
  train.free(0x1000, kBlock);
  train.alloc(0x2000, kBlock, gradient);
  train.alloc(0x3000, kBlock, forward);
  train.free(0x2000, kBlock);
  train.alloc(0x1000, kBlock, backward);
  train.alloc(0x2000, kBlock, gradient);  // memory runs out here
  const std::vector<std::string> found = names(train);
  EXPECT_EQ(found[3], "temporaries");
  EXPECT_EQ(found[4], "gradients");
}

// Three of a parameter's size for each gradient: the parameter, and the two moments of Adam.
TEST(Categories, SizesOfGradientsTellWhatWasThereBefore) {
  HistoryBuilder train;
  const StackId gradient = train.stack({{"", "torch::autograd::AccumulateGrad::apply"}});
  const StackId forward = train.stack({{"/app/model.py", "forward"}});
  const auto make = [&](std::size_t copies) {
    std::vector<HistoryBlock> blocks;
    for (std::size_t i = 0; i < copies; ++i) {
      for (const std::uint64_t bytes : {100 * kBlock, 200 * kBlock}) {
        blocks.push_back({.bytes = bytes, .requested_bytes = bytes, .state = HistoryBlock::State::allocated});
      }
    }
    blocks.push_back({.bytes = kBlock, .requested_bytes = kBlock, .state = HistoryBlock::State::allocated});
    return blocks;
  };
  HistoryBuilder with_sgd = train;
  for (HistoryBuilder* one : {&train, &with_sgd}) {
    for (int step = 0; step < 2; ++step) {
      one->alloc(0x1000, 100 * kBlock, gradient);
      one->alloc(0x100000, 200 * kBlock, gradient);
      one->alloc(0x200000, kBlock, forward);
      one->free(0x200000, kBlock);
      one->free(0x1000, 100 * kBlock);
      one->free(0x100000, 200 * kBlock);
    }
  }
  train.segment(0x1000000, make(3));
  std::vector<std::string> found = names(train);
  found.resize(7);
  EXPECT_EQ(found, (std::vector<std::string>{"parameters", "parameters", "optimizer state", "optimizer state",
                                             "optimizer state", "optimizer state", "unknown"}));
  with_sgd.segment(0x1000000, make(1));
  found = names(with_sgd);
  found.resize(3);
  EXPECT_EQ(found, (std::vector<std::string>{"parameters", "parameters", "unknown"}));
}

TEST(Categories, AFewMatchesOfSizesTellNothing) {
  HistoryBuilder train;
  const StackId gradient = train.stack({{"", "torch::autograd::AccumulateGrad::apply"}});
  const StackId forward = train.stack({{"/app/model.py", "forward"}});
  for (int step = 0; step < 2; ++step) {
    train.alloc(0x1000, 100 * kBlock, gradient);
    train.alloc(0x100000, 200 * kBlock, gradient);
    train.alloc(0x200000, kBlock, forward);
    train.free(0x200000, kBlock);
    train.free(0x1000, 100 * kBlock);
    train.free(0x100000, 200 * kBlock);
  }
  train.segment(0x1000000, {{.bytes = 200 * kBlock,
                             .requested_bytes = 200 * kBlock,
                             .state = HistoryBlock::State::allocated}});  // two thirds of the gradients
  EXPECT_EQ(names(train).front(), "unknown");
}

TEST(Categories, StacksWithoutFramesAreThoseOfAutogradsThread) {
  HistoryBuilder train;
  const StackId forward = train.stack({{"/app/model.py", "forward"}});
  train.alloc(0x1000, kBlock, forward);
  train.alloc(0x2000, kBlock, forward);
  train.alloc(0x3000, kBlock);
  EXPECT_EQ(names(train), (std::vector<std::string>{"activations", "activations", "gradients"}));
}

// Values that a program computes by itself: input before the forward pass, the loss between it and the backward pass.
TEST(Categories, TheLossIsComputedBetweenThePasses) {
  HistoryBuilder train;
  const StackId own = train.stack({{"/app/train.py", "<module>"}});
  const StackId forward = train.stack({{"/app/model.py", "forward"}, {"/app/train.py", "<module>"}});
  train.alloc(0x1000, kBlock, own);  // input
  train.alloc(0x2000, kBlock, forward);
  train.free(0x1000, kBlock);
  train.alloc(0x3000, kBlock, own);  // loss
  train.free(0x3000, kBlock);
  train.alloc(0x4000, kBlock, train.stack({{"", "torch::autograd::Engine::thread_main()"}}));
  EXPECT_EQ(names(train), (std::vector<std::string>{"unknown", "activations", "temporaries", "gradients"}));
}

TEST(Categories, ABackwardPassInsideACheckpointMakesGradients) {
  HistoryBuilder train;
  const HistoryBuilder::Call engine{"", "torch::autograd::Engine::thread_main()"};
  const HistoryBuilder::Call checkpoint{"/lib/torch/utils/checkpoint.py", "backward"};
  train.alloc(0x1000, kBlock, train.stack({{"/app/model.py", "forward"}, checkpoint, engine}));
  train.alloc(0x2000, kBlock, train.stack({engine, checkpoint, engine}));
  EXPECT_EQ(names(train), (std::vector<std::string>{"activations", "gradients"}));
}

// A gradient penalty: the first backward pass saves what the second one needs; only a later step frees gradients.
TEST(Categories, ABackwardPassMaySaveForTheNextOne) {
  HistoryBuilder train;
  const StackId own = train.stack({{"/app/train.py", "<module>"}});
  const StackId backward = train.stack({{"", "torch::autograd::Engine::thread_main()"}});
  train.alloc(0x1000, kBlock, backward);
  train.alloc(0x2000, kBlock, backward);
  train.alloc(0x3000, kBlock, own);  // the penalty
  train.alloc(0x4000, kBlock, backward);
  train.free(0x1000, kBlock);
  train.alloc(0x5000, kBlock, train.stack({{"/lib/torch/optim/adam.py", "step"}}));
  train.free(0x2000, kBlock);
  EXPECT_EQ(names(train)[0], "activations");
  EXPECT_EQ(names(train)[1], "gradients");
}

// Two more passes, which the program's own requests for input part: where stacks show PyTorch's C++, none of these is autograd's.
TEST(Categories, ResultsOfInferenceThatStayAreKept) {
  HistoryBuilder inference;
  const StackId input = inference.stack({{"", "at::empty"}, {"/app/infer.py", "<module>"}});
  const StackId forward =
      inference.stack({{"", "at::empty"}, {"/app/model.py", "forward"}, {"/app/infer.py", "<module>"}});
  for (std::uint64_t i = 0; i < 4; ++i) {
    inference.alloc(0x100000 + 0x1000 * i, kBlock, input);
    inference.alloc(0x200000 + 0x1000 * i, kBlock, forward);
    inference.alloc(0x3000, kBlock, forward);
    inference.free(0x3000, kBlock);
  }
  const std::vector<std::string> told = names(inference);
  EXPECT_EQ(told[1], "kept");
  EXPECT_EQ(told[2], "temporaries");
}

TEST(Categories, FullyShardedGradientsAreWhatReductionsLeave) {
  HistoryBuilder train;
  const std::string fsdp = "/lib/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py";
  const StackId reduction = train.stack({{fsdp, "allocate"}, {fsdp, "foreach_reduce"}});
  train.alloc(0x1000, kBlock, reduction);
  train.alloc(0x2000, kBlock, reduction);
  train.free(0x1000, kBlock);
  train.alloc(0x3000, kBlock, train.stack({{fsdp, "all_gather"}}));
  train.alloc(0x4000, kBlock, train.stack({{"/lib/torch/optim/adam.py", "step"}}));
  EXPECT_EQ(names(train), (std::vector<std::string>{"communication", "gradients", "communication", "optimizer state"}));
}

// Weights without a module, and a function whose name only sounds like a pass.
TEST(Categories, SizesOfGradientsTellWeightsWithoutModules) {
  HistoryBuilder train;
  const StackId own = train.stack({{"", "at::randn"}, {"/app/train.py", "train_backward"}});
  train.alloc(0x1000, 4 * kBlock, own);
  train.alloc(0x2000, kBlock, own);  // input
  train.alloc(0x3000, 4 * kBlock, train.stack({{"", "torch::autograd::Engine::thread_main()"}}));
  train.alloc(0x4000, 2 * kBlock, own);  // the update
  EXPECT_EQ(names(train), (std::vector<std::string>{"parameters", "unknown", "gradients", "unknown"}));
}

// .cuda(), .half() and the like call a lambda of torch/nn/modules/module.py for each parameter.
TEST(Categories, WhatMovesAModuleMakesParameters) {
  HistoryBuilder train;
  const std::string module = "/lib/torch/nn/modules/module.py";
  const StackId lambda = train.stack({{module, "<lambda>"}, {module, "_apply"}, {module, "cuda"}, {"/app/a.py", "f"}});
  const StackId flat = train.stack({{"/lib/torch/distributed/fsdp/_flat_param.py", "flatten_tensors"}});
  const StackId tensor =
      train.stack({{"/lib/torch/distributed/tensor/_dispatch.py", "dispatch"}, {"/lib/torch/optim/adam.py", "step"}});
  train.alloc(0x1000, kBlock, lambda);
  train.alloc(0x2000, kBlock, flat);
  train.alloc(0x3000, kBlock, train.stack({{"/app/model.py", "forward"}}));
  train.alloc(0x4000, kBlock);  // a backward pass
  train.alloc(0x5000, kBlock, tensor);
  EXPECT_EQ(names(train),
            (std::vector<std::string>{"parameters", "parameters", "activations", "gradients", "optimizer state"}));
}

// The error frees the memory that the backward pass would have used. Memory that the same line freed before, in a pass
// that went well, is temporary here as well.
TEST(Categories, MemoryThatRunsOutInAForwardPassLeavesActivations) {
  HistoryBuilder train;
  const StackId saved = train.stack({{"/app/model.py", "forward", 7}});
  const StackId scratch = train.stack({{"/app/model.py", "forward", 8}});
  for (const bool fails : {false, true}) {
    train.alloc(0x1000, kBlock, saved);
    train.alloc(0x2000, kBlock, scratch);
    if (fails) train.add(Action::oom, 0, 8 * kBlock, saved);
    train.free(0x2000, kBlock);
    if (!fails) train.alloc(0x3000, kBlock, train.stack({{"", "torch::autograd::Engine::evaluate_function(int)"}}));
    if (!fails) train.free(0x3000, kBlock);
    train.free(0x1000, kBlock);
  }
  EXPECT_EQ(names(train),
            (std::vector<std::string>{"activations", "temporaries", "temporaries", "activations", "temporaries"}));
}

TEST(Categories, MemoryThatRunsOutInABackwardPassLeavesGradients) {
  HistoryBuilder train;
  const StackId forward = train.stack({{"/app/model.py", "forward", 7}});
  const StackId weights =
      train.stack({{"", "mm_mat2_backward"}, {"", "torch::autograd::Engine::evaluate_function(int)"}});
  const StackId inputs =
      train.stack({{"", "mm_mat1_backward"}, {"", "torch::autograd::Engine::evaluate_function(int)"}});
  train.alloc(0x1000, kBlock, forward);
  train.alloc(0x2000, kBlock, weights);
  train.alloc(0x3000, kBlock, inputs);
  train.free(0x1000, kBlock);
  train.free(0x3000, kBlock);
  train.alloc(0x4000, kBlock, weights);
  train.add(Action::oom, 0, 8 * kBlock, inputs);
  train.free(0x4000, kBlock);  // the error passes through the function that made it
  EXPECT_EQ(names(train), (std::vector<std::string>{"activations", "gradients", "temporaries", "gradients"}));
}

TEST(Categories, TagsStagesAndFilesTell) {
  HistoryBuilder train;
  EventDetails tagged;
  tagged.user_metadata = train.history().texts.add("{\"what\": \"kv_cache\"}");
  const DetailsId details = train.history().details.add(tagged);
  const StackId anywhere = train.stack({{"/app/main.py", "main"}});
  const StackId reduce =
      train.stack({{"/lib/torch/distributed/fsdp/a.py", "all_gather"}, {"/app/model.py", "forward"}});
  train.alloc(0x1000, kBlock, anywhere, details);
  train.alloc(0x2000, kBlock, reduce);
  train.stage("Optimizer.step#SGD", true);
  train.alloc(0x3000, kBlock, anywhere);
  train.stage("Optimizer.step#SGD", false);
  train.free(0x3000, kBlock);
  train.alloc(0x4000, kBlock, anywhere);
  EXPECT_EQ(names(train), (std::vector<std::string>{"caches", "communication", "temporaries", "unknown"}));
}

TEST(Categories, OwnRulesComeFirst) {
  HistoryBuilder train;
  train.alloc(0x1000, kBlock, train.stack({{"/app/rotary.py", "build"}, {"/app/model.py", "forward"}}));
  train.alloc(0x2000, kBlock, train.stack({{"/app/model.py", "forward"}}));
  const TemporaryFile file(R"({"rules": [{"category": "rotary table", "regex": "rotary\\.py:b.*d$"}]})");
  const CategoryRules rules = rules_with(InputFile(file.path(), "rules"));
  EXPECT_EQ(names(train, rules), (std::vector<std::string>{"rotary table", "activations"}));
}

TEST(Categories, ARegexThatWouldBacktrackForeverEnds) {
  HistoryBuilder train;
  train.alloc(0x1000, kBlock, train.stack({{std::string(2000, 'a'), "f"}}));
  const TemporaryFile file(R"({"rules": [{"category": "x", "regex": "(a*)*(a|aa)*b"}]})");
  const CategoryRules rules = rules_with(InputFile(file.path(), "rules"));
  EXPECT_EQ(names(train, rules), std::vector<std::string>{"unknown"});
}

TEST(Categories, BadRulesAreNamed) {
  const auto complaint = [](const std::string& text) {
    const TemporaryFile file(text);
    return complaint_about(file.path(), ": ", [&] { rules_with(InputFile(file.path(), "rules")); });
  };
  EXPECT_EQ(complaint("{"), "rules must be JSON");
  EXPECT_EQ(complaint("[]"), "rules must be an object with a list `rules`");
  EXPECT_EQ(complaint(R"({"rules": [{"category": "x"}]})"),
            "rule 1 has none of regex, files, functions, tags and stages");
  EXPECT_EQ(complaint(R"({"rules": [{"files": ["x"]}]})"), "rule 1 has no category");
  EXPECT_EQ(complaint(R"({"rules": [{"category": "x", "regex": "a{9}"}]})"),
            "rule 1: regex 'a{9}' repeats by counts; write the repeated part out, or use * or +");
  EXPECT_EQ(complaint(R"({"rules": [{"category": "x", "flies": ["a"]}]})"),
            "rule 1: 'flies' is none of category, means, anywhere, weak, regex, files, functions, tags and stages");
}

TEST(Sites, APlaceIsTheProgramsOwnLine) {
  HistoryBuilder train;
  const StackId stack = train.stack({{"", "at::empty()"},
                                     {"/lib/python3.11/site-packages/torch/nn/modules/linear.py", "forward", 125},
                                     {"/lib/python3.11/site-packages/gpt/attention.py", "forward", 9},
                                     {"/home/me/app/model.py", "forward", 7},
                                     {"/home/me/app/train.py", "<module>", 3}});
  Sites sites(train.history());
  EXPECT_EQ(sites.text_of(sites.place_of(stack)), "app/model.py:7 in forward");
  EXPECT_EQ(sites.text_of(sites.place_of(stack, Frames::library)), "gpt/attention.py:9 in forward");
  EXPECT_EQ(sites.text_of(sites.place_of(stack, Frames::all)), "at::empty");
  EXPECT_EQ(sites.module_of(stack), "model.py:7 > attention.py:9 > nn.linear");
  const StackId backward = train.stack({{"/lib/cachalot_simulator/compute/operations.py", "call", 135},
                                        {"", "torch::autograd::generated::MulBackward0::apply()"}});
  EXPECT_EQ(sites.text_of(sites.place_of(backward)), "torch::autograd::generated::MulBackward0::apply")
      << "the simulator computes it";
  const StackId alone = train.stack({{"/lib/cachalot_simulator/compute/operations.py", "call", 135}});
  EXPECT_EQ(sites.text_of(sites.place_of(alone)), "a place outside of the program's code");
}

TEST(Sites, ATreeAddsUpItsCalls) {
  HistoryBuilder train;
  const StackId one = train.stack({{"b.py", "b"}, {"a.py", "a"}});
  const StackId other = train.stack({{"c.py", "c"}, {"a.py", "a"}});
  Sites sites(train.history());
  StackTree tree(train.history(), sites, Frames::own);
  tree.add(one, 10);
  tree.add(other, 30, 2);
  ASSERT_EQ(tree.nodes().size(), 4);
  EXPECT_EQ(tree.nodes()[0].bytes, 40);
  EXPECT_EQ(tree.nodes()[1].count, 3);
  const auto children = tree.children();
  EXPECT_EQ(children[1], (std::vector<std::uint32_t>{3, 2}));  // the larger first
}

TEST(Timeline, BytesBeforeTheHistoryAreRebuilt) {
  HistoryBuilder train;
  train.segment(0x10000,
                {{.bytes = 1024, .requested_bytes = 1000, .state = HistoryBlock::State::allocated}, {.bytes = 1024}});
  train.add(Action::segment_alloc, 0x10000, 2048);
  train.alloc(0x10000, 1000);
  train.alloc(0x10400, 600);
  train.free(0x10400, 600);
  train.free(0x90000, 100);  // was there before
  const Timeline timeline(train.history(), train.device());
  HeldCursor cursor(timeline);
  EXPECT_EQ(cursor.held().requested, 100);
  EXPECT_EQ(cursor.held().allocated, 512);
  EXPECT_EQ(cursor.held().reserved, 0);
  const auto peak = timeline.moment(MomentKind::allocated_peak);
  ASSERT_TRUE(peak);
  EXPECT_EQ(peak->event, 3);
  EXPECT_EQ(peak->held.requested, 1700);
  EXPECT_EQ(peak->held.allocated, 512 + 1024 + 1024);
  EXPECT_EQ(peak->held.reserved, 2048);
  EXPECT_EQ(peak->live.size(), 3);
  while (!cursor.is_at_end()) cursor.advance();
  EXPECT_EQ(cursor.held().requested, 1000);
  EXPECT_FALSE(timeline.moment(MomentKind::out_of_memory));
}

TEST(Timeline, LargeBlocksHaveTheRemaindersThatWereNotSplitOff) {
  constexpr Address kSegment = 0x7000000000;
  HistoryBuilder train;
  train.segment(kSegment, {{.bytes = 60 * kMiB}});
  train.add(Action::segment_alloc, kSegment, 60 * kMiB);
  train.alloc(kSegment, 25 * kMiB);
  train.alloc(kSegment + 25 * kMiB, 34 * kMiB);  // 1 MiB is left up to the segment's end
  train.free(kSegment, 25 * kMiB);
  train.alloc(kSegment, 24 * kMiB + 1);  // and here up to the next block
  train.free(kSegment, 24 * kMiB + 1);
  train.alloc(kSegment, 20 * kMiB);
  EXPECT_EQ(Timeline(train.history(), train.device()).block_bytes(),
            (std::vector<std::uint64_t>{25 * kMiB, 35 * kMiB, 25 * kMiB, 20 * kMiB}));
  train.add(Action::segment_map, kSegment + 60 * kMiB, 2 * kMiB);  // expandable segments split every block
  EXPECT_EQ(Timeline(train.history(), train.device()).block_bytes(),
            (std::vector<std::uint64_t>{25 * kMiB, 34 * kMiB, 24 * kMiB + 512, 20 * kMiB}));
}

TEST(Stages, AreNestedAndEndInAnyOrder) {
  HistoryBuilder train;
  train.alloc(0x1000, 1);
  train.stage("step", true);
  train.alloc(0x2000, 1);
  train.stage("forward", true);
  train.alloc(0x3000, 1);
  train.stage("step", false);
  train.alloc(0x4000, 1);
  const Stages stages(train.history(), train.device());
  EXPECT_EQ(stages.name(stages.at(0)), "");
  EXPECT_EQ(stages.name(stages.at(1)), "step");
  EXPECT_EQ(stages.name(stages.at(2)), "step > forward");
  EXPECT_EQ(stages.name(stages.at(3)), "step > forward");  // the end has the time of the event
}

}  // namespace
}  // namespace cachalot::tools
