// Pickles: what Python writes of plain data is read in every protocol, and nothing in one is ever executed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "tests/tools/complaint.h"
#include "tests/tools/data_files.h"
#include "tests/tools/temporary_file.h"
#include "tools/history/history.h"

namespace cachalot::tools {
namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;

std::string word(const std::string& text) { return "\x8c"s + static_cast<char>(text.size()) + text; }

// A snapshot with one entry, whose field has the value of this pickle.
std::string snapshot_with(const std::string& key, std::string_view pickle) {
  EXPECT_TRUE(pickle.ends_with('.'));
  return "\x80\x04}(" + word("segments") + "]" + word("device_traces") + "]](}(" + word("action") + word("alloc") +
         word("addr") + "K\x01" + word("size") + "K\x02" + word("stream") + "K\0"s + word(key) +
         std::string(pickle.substr(0, pickle.size() - 1)) + "ueau.";
}

History read(const std::string& snapshot) { return read_history(TemporaryFile(snapshot).path()); }

// The value of the pickle as the metadata of an entry: JSON, in which bytes are "..." and sets and tuples lists.
std::string metadata_of(std::string_view pickle) {
  const History history = read(snapshot_with("user_metadata", pickle));
  const HistoryEvent& event = history.devices.at(0).events.at(0);
  return std::string(history.texts[history.details[event.details].user_metadata]);
}

// The message without the file's name; "" when there is no complaint.
std::string complaint(std::string_view pickle) {
  const TemporaryFile file(pickle);
  return complaint_about(file.path(), ": ", [&] { read_history(file.path()); });
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << (text)

// pickle.dumps(value, protocol) of CPython 3.11, where the value is
//   {'none': None, 'yes': True, 'no': False, 'int': [0, -1, 255, 65536, -2**31, 2**62, -2**63, 2**64-1], 'real': 1.5,
//    'text': 'café € 😀\n\\', 'list': [[], [1]], 'tuple': ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
//    'again': the list a second time}
constexpr std::array kEveryProtocol = {
    // protocol 0
    "(dp0\012Vnone\012p1\012NsVyes\012p2\012I01\012sVno\012p3\012I00\012sVint\012p4\012(lp5\012I0\012a"
    "I-1\012aI255\012aI65536\012aI-2147483648\012aL4611686018427387904L\012aL-9223372036854775808L\012"
    "aL18446744073709551615L\012asVreal\012p6\012F1.5\012sVtext\012p7\012Vcaf\351 \134u20ac \134U0001f"
    "600\134u000a\134u005c\012p8\012sVlist\012p9\012(lp10\012(lp11\012a(lp12\012I1\012aasVtuple\012p13"
    "\012((t(I1\012tp14\012(I1\012I2\012tp15\012(I1\012I2\012I3\012tp16\012(I1\012I2\012I3\012I4\012tp"
    "17\012tp18\012sVagain\012p19\012g10\012s."sv,
    // protocol 1
    "}q\000(X\004\000\000\000noneq\001NX\003\000\000\000yesq\002I01\012X\002\000\000\000noq\003I00\012"
    "X\003\000\000\000intq\004]q\005(K\000J\377\377\377\377K\377J\000\000\001\000J\000\000\000\200L461"
    "1686018427387904L\012L-9223372036854775808L\012L18446744073709551615L\012eX\004\000\000\000realq\006"
    "G\077\370\000\000\000\000\000\000X\004\000\000\000textq\007X\020\000\000\000caf\303\251 \342\202\254"
    " \360\237\230\200\012\134q\010X\004\000\000\000listq\011]q\012(]q\013]q\014K\001aeX\005\000\000\000"
    "tupleq\015()(K\001tq\016(K\001K\002tq\017(K\001K\002K\003tq\020(K\001K\002K\003K\004tq\021tq\022X"
    "\005\000\000\000againq\023h\012u."sv,
    // protocol 2
    "\200\002}q\000(X\004\000\000\000noneq\001NX\003\000\000\000yesq\002\210X\002\000\000\000noq\003\211"
    "X\003\000\000\000intq\004]q\005(K\000J\377\377\377\377K\377J\000\000\001\000J\000\000\000\200\212"
    "\010\000\000\000\000\000\000\000@\212\010\000\000\000\000\000\000\000\200\212\011\377\377\377\377"
    "\377\377\377\377\000eX\004\000\000\000realq\006G\077\370\000\000\000\000\000\000X\004\000\000\000"
    "textq\007X\020\000\000\000caf\303\251 \342\202\254 \360\237\230\200\012\134q\010X\004\000\000\000"
    "listq\011]q\012(]q\013]q\014K\001aeX\005\000\000\000tupleq\015()K\001\205q\016K\001K\002\206q\017"
    "K\001K\002K\003\207q\020(K\001K\002K\003K\004tq\021tq\022X\005\000\000\000againq\023h\012u."sv,
    // protocol 3
    "\200\003}q\000(X\004\000\000\000noneq\001NX\003\000\000\000yesq\002\210X\002\000\000\000noq\003\211"
    "X\003\000\000\000intq\004]q\005(K\000J\377\377\377\377K\377J\000\000\001\000J\000\000\000\200\212"
    "\010\000\000\000\000\000\000\000@\212\010\000\000\000\000\000\000\000\200\212\011\377\377\377\377"
    "\377\377\377\377\000eX\004\000\000\000realq\006G\077\370\000\000\000\000\000\000X\004\000\000\000"
    "textq\007X\020\000\000\000caf\303\251 \342\202\254 \360\237\230\200\012\134q\010X\004\000\000\000"
    "listq\011]q\012(]q\013]q\014K\001aeX\005\000\000\000tupleq\015()K\001\205q\016K\001K\002\206q\017"
    "K\001K\002K\003\207q\020(K\001K\002K\003K\004tq\021tq\022X\005\000\000\000againq\023h\012u."sv,
    // protocol 4
    "\200\004\225\305\000\000\000\000\000\000\000}\224(\214\004none\224N\214\003yes\224\210\214\002no\224"
    "\211\214\003int\224]\224(K\000J\377\377\377\377K\377J\000\000\001\000J\000\000\000\200\212\010\000"
    "\000\000\000\000\000\000@\212\010\000\000\000\000\000\000\000\200\212\011\377\377\377\377\377\377"
    "\377\377\000e\214\004real\224G\077\370\000\000\000\000\000\000\214\004text\224\214\020caf\303\251"
    " \342\202\254 \360\237\230\200\012\134\224\214\004list\224]\224(]\224]\224K\001ae\214\005tuple\224"
    "()K\001\205\224K\001K\002\206\224K\001K\002K\003\207\224(K\001K\002K\003K\004t\224t\224\214\005ag"
    "ain\224h\012u."sv,
    // protocol 5
    "\200\005\225\305\000\000\000\000\000\000\000}\224(\214\004none\224N\214\003yes\224\210\214\002no\224"
    "\211\214\003int\224]\224(K\000J\377\377\377\377K\377J\000\000\001\000J\000\000\000\200\212\010\000"
    "\000\000\000\000\000\000@\212\010\000\000\000\000\000\000\000\200\212\011\377\377\377\377\377\377"
    "\377\377\000e\214\004real\224G\077\370\000\000\000\000\000\000\214\004text\224\214\020caf\303\251"
    " \342\202\254 \360\237\230\200\012\134\224\214\004list\224]\224(]\224]\224K\001ae\214\005tuple\224"
    "()K\001\205\224K\001K\002\206\224K\001K\002K\003\207\224(K\001K\002K\003K\004t\224t\224\214\005ag"
    "ain\224h\012u."sv,
};

TEST(Pickles, OfEveryProtocolAreRead) {
  for (std::size_t protocol = 0; protocol < kEveryProtocol.size(); ++protocol) {
    SCOPED_TRACE(fmt::format("protocol {}", protocol));
    EXPECT_EQ(metadata_of(kEveryProtocol[protocol]),
              R"({"none":null,"yes":true,"no":false,"int":[0,-1,255,65536,-2147483648,4611686018427387904,)"
              R"(-9223372036854775808,18446744073709551615],"real":1.5,"text":"café € 😀\n\\","list":[[],[1]],)"
              R"("tuple":[[],[1],[1,2],[1,2,3],[1,2,3,4]],"again":[[],[1]]})");
  }
}

TEST(Pickles, MayHoldBytesAndSets) {
  EXPECT_EQ(metadata_of("\200\005\225\025\0\0\0\0\0\0\0]\224(C\002\0\377\224\217\224(K\001\220(K\002\221\224e."sv),
            R"(["...",[1],[2]])");
  EXPECT_EQ(metadata_of("\200\005\225\015\0\0\0\0\0\0\0]\226\002\0\0\0\0\0\0\0ab\224a."sv), R"(["..."])");
}

TEST(Pickles, OfPython2AreRead) {
  EXPECT_EQ(metadata_of("(lp0\nS'a\\n\\'\\x41'\np1\naI7\naL8L\na."sv), R"(["a\n'A",7,8])");
  EXPECT_EQ(metadata_of("\x80\x02U\x02hi."sv), "hi");
}

// The danger of unpickling an unknown file: each of these calls os.system in Python, or would get there.
TEST(Pickles, ThatWouldRunSomethingAreRefused) {
  EXPECT_EQ(
      complaint("\x80\x02"
                "cos\nsystem\n(S'touch /tmp/owned'\ntR."sv),
      "byte 2: opcode 'c': GLOBAL is refused: it names or calls something of Python's, and only plain data is read");
  const std::array<std::pair<std::string_view, const char*>, 15> refused = {{
      {"cos\nsystem\n."sv, "GLOBAL"},
      {"\x8c\x02os\x8c\x06system\x93."sv, "STACK_GLOBAL"},
      {"N)R."sv, "REDUCE"},
      {"(S'id'\nios\nsystem\n."sv, "INST"},
      {"(NNo."sv, "OBJ"},
      {"N)\x81."sv, "NEWOBJ"},
      {"N)}\x92."sv, "NEWOBJ_EX"},
      {"N}b."sv, "BUILD"},
      {"Pfile\n."sv, "PERSID"},
      {"NQ."sv, "BINPERSID"},
      {"\x82\x01."sv, "EXT1"},
      {"\x83\x01\0."sv, "EXT2"},
      {"\x84\x01\0\0\0."sv, "EXT4"},
      {"\x97."sv, "NEXT_BUFFER"},
      {"N\x98."sv, "READONLY_BUFFER"},
  }};
  for (const auto& [pickle, name] : refused)
    EXPECT_CONTAINS(complaint("\x80\x02" + std::string(pickle)), fmt::format(": {} is refused", name));
}

// The complaint about a pickle behind an opcode of protocol 2, which has two bytes.
std::string broken(const std::string& pickle) { return complaint("\x80\x02" + pickle); }
std::string broken(std::string_view pickle) { return broken(std::string(pickle)); }

TEST(Pickles, AreRefusedByOpcodePositionAndRule) {
  EXPECT_EQ(complaint("\x80\x06N."sv), "byte 0: opcode '\\x80': protocol 6: 0 to 5 can be read");
  EXPECT_EQ(broken("\x80\x02\x01."sv),
            "byte 4: opcode '\\x01': there is no such opcode: this is no pickle, or a damaged one");
  EXPECT_EQ(broken("a."sv), "byte 2: opcode 'a': it needs 1 values, the stack has 0");
  EXPECT_EQ(broken("e."sv), "byte 2: opcode 'e': it needs a mark, there is none");
  EXPECT_EQ(broken("(e."sv), "byte 3: opcode 'e': there is nothing below the values");
  EXPECT_EQ(broken("NNa."sv), "byte 4: the snapshot: its values go into None, which is none of the right kind");
  EXPECT_EQ(broken("NNNs."sv), "byte 5: the snapshot: its values go into None, which is no dict");
  EXPECT_EQ(broken("}(Nu."sv), "byte 5: opcode 'u': keys and values come in pairs, these are 1");
  EXPECT_EQ(broken("](K\x01\x85(\x85."sv), "byte 8: opcode '\\x85': it needs 1 values, the stack has 0");
  EXPECT_EQ(broken("NN."sv),
            "byte 4: opcode '.': the pickle ends with 2 values and 0 marks on its stack, not with one value");
  EXPECT_EQ(broken("N.N"sv), "byte 3: opcode '.': the pickle ends, but the file goes on");
  EXPECT_EQ(broken("h\x05."sv), "byte 2: opcode 'h': the memo has nothing under number 5");
  EXPECT_EQ(broken("NNNq\x02h\x01."sv), "byte 7: opcode 'h': the memo has nothing under number 1");
  EXPECT_EQ(broken("I12x\n."sv), "byte 2: opcode 'I': '12x' is not a whole number of 64 bits");
  EXPECT_EQ(broken("L99999999999999999999L\n."sv),
            "byte 2: opcode 'L': '99999999999999999999' is not a whole number of 64 bits");
  EXPECT_EQ(broken("Fx\n."sv), "byte 2: opcode 'F': 'x' is not a number");
  EXPECT_EQ(broken("S'abc\n."sv), "byte 2: opcode 'S': ''abc' is not in quotes");
  EXPECT_EQ(broken("V\\uzzzz\n."sv), "byte 2: opcode 'V': 'zzzz' is no character's number");
  EXPECT_EQ(broken("g-1\n."sv), "byte 2: opcode 'g': '-1' is no number of the memo");
  EXPECT_CONTAINS(broken("I" + std::string(100'000, '7') + "\n."), "its line has more than 65536 bytes");
}

// A long says itself how long it is, and 2 GiB of digits would be believed by int().
TEST(Pickles, HaveNoIntegersOfMoreThan64Bits) {
  EXPECT_CONTAINS(broken("\x8a\x0a" + std::string(10, '\x01') + "."), "an integer of 10 bytes");
  EXPECT_CONTAINS(broken("\x8a\x09" + std::string(9, '\x01') + "."), "more than 64 bits");
  EXPECT_CONTAINS(broken("\x8b\xff\xff\xff\x7f."sv), "an integer of 2147483647 bytes");
}

TEST(Pickles, AreNotBelievedTheirLengths) {
  const std::string huge("\0\0\0\0\0\0\0\x10", 8);  // 2^60
  for (const std::string opcode : {"\x8d", "\x8e", "\x96"})
    EXPECT_CONTAINS(broken(opcode + huge + "abc"), "byte 2: the file is cut off");
  EXPECT_CONTAINS(broken("X\xff\xff\xff\xff" + std::string("abc")), "byte 2: the file is cut off");
  EXPECT_EQ(broken("\x95" + huge), "byte 11: the file is cut off: there is no STOP");
  EXPECT_EQ(broken("Nr\xff\xff\xff\xff."sv),
            "byte 3: opcode 'r': the memo's number 4294967295 is beyond what the file has had so far");
  EXPECT_CONTAINS(broken("Np18446744073709551615\n."sv), "the memo's number 18446744073709551615 is beyond");
}

TEST(Pickles, ThatAreCutOffAreRefused) {
  for (const std::string_view value : kEveryProtocol) {
    const std::string whole = snapshot_with("user_metadata", value);
    for (std::size_t bytes = 1; bytes < whole.size(); ++bytes) {
      EXPECT_CONTAINS(complaint(whole.substr(0, bytes)), "the file is cut off") << bytes;
    }
  }
  const TemporaryFile zipped;
  write_gzip(zipped.path(), std::string(100'000, '(') + std::string(kEveryProtocol[2]));
  const std::string content = read_whole(zipped.path());
  EXPECT_CONTAINS(complaint(content.substr(0, content.size() / 2)), "the gzip file is cut off");
}

// No recursion: neither reading nor destruction needs a stack as deep as the data.
TEST(Pickles, MayHaveListsInListsAMillionDeep) {
  const std::string deep = std::string(1'000'000, ']') + std::string(999'999, 'a') + ".";
  EXPECT_EQ(complaint(deep), "byte 1999999: segment 0: it is a list, not a dict");
  EXPECT_EQ(read(snapshot_with("from_the_future", deep)).devices.at(0).events.size(), 1u);
  EXPECT_EQ(metadata_of(deep), std::string(16, '[') + "\"...\"" + std::string(16, ']'));
}

// Each list holds the one before twice: 2^60 items, if they were copied.
TEST(Pickles, ShareWhatTheyNameAgain) {
  std::string pickle = "]q";
  pickle += '\0';
  for (int i = 1; i <= 60; ++i)
    pickle +=
        std::string("0](h") + static_cast<char>(i - 1) + "h" + static_cast<char>(i - 1) + "eq" + static_cast<char>(i);
  pickle += ".";
  EXPECT_EQ(read(snapshot_with("from_the_future", pickle)).devices.at(0).events.size(), 1u);
  EXPECT_LT(metadata_of(pickle).size(), 4096u);
}

TEST(Pickles, MayHoldAListThatHoldsItself) {
  EXPECT_EQ(metadata_of("]q\0h\0a."sv), std::string(16, '[') + "\"...\"" + std::string(16, ']'));
}

// Whatever is changed in a pickle, it is read or refused.
TEST(Pickles, MayBeDamaged) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  const std::string snapshot = read_whole(kLayers);
  std::size_t refused = 0;
  for (int i = 0; i < 400; ++i) {
    std::string damaged =
        i % 2 == 0 ? snapshot : snapshot_with("user_metadata", kEveryProtocol[random() % kEveryProtocol.size()]);
    for (std::size_t changes = 1 + random() % 4; changes > 0; --changes) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    if (!complaint(damaged).empty()) ++refused;
  }
  EXPECT_GT(refused, 40u);
}

}  // namespace
}  // namespace cachalot::tools
