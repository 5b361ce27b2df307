#!/usr/bin/env python3
"""Tests of cpp_scanner and check_structure: small sources, and a planted breach of each kind."""

import pathlib
import tempfile
import textwrap
import unittest

import check_structure
import cpp_scanner


def classes(source):
    return {each.name: each.members for each in cpp_scanner.scan(textwrap.dedent(source))[1]}


def functions(source):
    return {each.name: (each.line, each.lines) for each in cpp_scanner.scan(textwrap.dedent(source))[0]}


class ClassesTest(unittest.TestCase):
    def test_functions_and_data_are_members_and_overloads_count_each(self):
        self.assertEqual(classes("""\
            class Heap final : public Base<int, 2>, private Other {
             public:
              explicit Heap(int a = 1, std::vector<int> b = {}) : a_(a), b_{std::move(b)} { start(); }
              Heap(const Heap&) = delete;
              ~Heap() override;
              void take(int bytes) const noexcept;
              void take(int bytes, int stream) REQUIRES(mutex_);
              template <typename T>
                requires Fits<T> && (sizeof(T) < 8)
              T make(T first, T second) { return first < second ? first : second; }
              bool operator==(const Heap& other) const = default;
              int operator()(int x) { return x; }
              operator bool() const { return true; }

             private:
              int a_ = 0;
              const std::map<int, std::vector<int>> b_ GUARDED_BY(mutex_){{1, {2, 3}}, {4, {5}}};
              std::function<void(int, int)> call_;
              void (*run_)(void*, int) = nullptr;
              alignas(64) std::atomic<bool> locked_{false};
              unsigned bits_ : 3;
              static constexpr int kMost = kFirst < kLast ? 1 : 2;
            };"""), {"Heap": 16})

    def test_a_declaration_of_two_data_has_two_members(self):
        self.assertEqual(classes("struct Pair { int first = f(1, 2), second[2] = {1, 2}; bool third = is_same<int, long>; };"),
                         {"Pair": 3})

    def test_types_aliases_and_friends_are_no_members(self):
        self.assertEqual(classes("""\
            class Outer {
              using Names = std::vector<int>;
              enum class Kind : unsigned char { one, two };
              class Forward;
              struct Inner { int a; int b; };
              struct Named { int c; } named_;
              friend class Other;
              friend bool operator<(const Outer& a, const Outer& b) { return &a < &b; }
              static_assert(sizeof(int) == 4);
              Inner inner_;
            };"""), {"Inner": 2, "Named": 1, "Outer": 2})

    def test_annotated_templated_and_nested_names_are_found(self):
        self.assertEqual(classes("""\
            namespace a::b {
            class CAPABILITY("mutex") [[nodiscard]] Mutex { void lock() ACQUIRE(); };
            template <typename Result, Result (*kFunction)(int)>
            struct PerThread<kFunction> { static Result call(); };
            extern "C" { struct Plain { int x; }; }
            }"""), {"Mutex": 1, "PerThread": 1, "Plain": 1})

    def test_a_class_in_a_function_is_found(self):
        self.assertEqual(classes("""\
            int f() {
              struct Ending { ~Ending() { g([] { h(); }); } } ending;
              if (a) { b(); }
            }"""), {"Ending": 1})

    def test_enums_and_functions_that_return_a_struct_are_no_classes(self):
        self.assertEqual(classes("enum class Kind { one, two }; struct Left f(int a) { return {a}; } struct Left* g();"), {})


class FunctionsTest(unittest.TestCase):
    def test_lines_are_from_the_first_word_to_the_brace(self):
        self.assertEqual(functions("""\
            // Comment.
            template <typename T>
            int a::Heap<T>::take(
                int bytes) const {
              return 1;
            }

            Heap::~Heap() {}
            """), {"a::Heap<T>::take": (2, 5), "Heap::~Heap": (8, 1)})

    def test_braces_of_comments_texts_and_directives_do_not_count(self):
        self.assertEqual(functions('''\
            #define OPEN {  \\
              {
            void f() {  // {
              const char* a = "{ \\" {"; /* { */
              const char* b = R"x({ )" { )x";
              char c = '{', d = '\\'';
              long e = 1'000'000;
            }
            void g() {}
            '''), {"f": (3, 6), "g": (9, 1)})

    def test_members_initialized_with_braces_are_no_bodies(self):
        self.assertEqual(functions("""\
            Heap::Heap(int a)
                : Base<int>{a}, a_{a}, b_(a),
                  call_([this] { run(); }) {
              start();
            }
            void after() {}
            """), {"Heap::Heap": (1, 5), "after": (6, 1)})

    def test_variables_with_lambdas_are_no_functions(self):
        self.assertEqual(functions("""\
            const auto run = [](int a) { return a; };
            int table[] = {1, 2};
            auto f() -> Type<int> { return {}; }
            """), {"f": (3, 1)})

    def test_operators_have_their_names(self):
        self.assertEqual(set(functions("""\
            bool A::operator==(const A& other) const { return true; }
            int A::operator()(int a) { return a; }
            """)), {"operator==", "operator()"})

    def test_a_brace_too_much_or_too_few_is_told(self):
        for source in ("void f() { {", "void f() {} }", "int a[] = {1, 2"):
            with self.subTest(source), self.assertRaises(cpp_scanner.ScanError):
                cpp_scanner.scan(source)


class FindingsTest(unittest.TestCase):
    def findings(self, files, allowed=(), known=None):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            return check_structure.findings_of(root, allowed, known or {})

    def test_the_largest_of_each_kind_that_is_allowed_is_no_finding(self):
        members = "".join(f"int a{number}_;\n" for number in range(59))
        self.assertEqual(self.findings({
            "pool/a.h": "\n" * 450, "tools/commands/a.cpp": "\n" * 700, "simulator/f.cpp": "void f() {" + "\n" * 59 + "}",
            "kernels/c.cuh": "class C {\nvoid f();\n" + members + "};"}), [])

    def test_a_planted_breach_of_each_kind_is_found(self):
        members = "".join(f"int a{number}_;\n" for number in range(59))
        self.assertEqual(self.findings({
            "pool/a.h": "\n" * 451, "allocator/a.cpp": "\n" * 701, "simulator/f.cpp": "\nvoid A::f() {" + "\n" * 60 + "}",
            "kernels/c.cu": "class C {\nvoid f();\nvoid f(int);\n" + members + "};", "pytorch/d.h": "void f() {"}),
            ["pytorch/d.h:1: a brace is not closed: the scanner cannot follow this source",
             "allocator/a.cpp:1: file, 701 lines, limit 700",
             "pool/a.h:1: header, 451 lines, limit 450",
             "kernels/c.cu:1: class C, 61 members, limit 60",
             "simulator/f.cpp:2: function A::f, 61 lines, limit 60"])

    def test_an_exception_hides_its_breach_alone(self):
        long = "void f() {" + "\n" * 60 + "}\nvoid g() {" + "\n" * 60 + "}"
        self.assertEqual(self.findings({"tools/a.cpp": long}, allowed={("function", "tools/a.cpp", "f"): "a table"}),
                         ["tools/a.cpp:62: function g, 61 lines, limit 60"])

    def test_what_is_known_may_not_grow(self):
        key = ("header", "tools/a.h", "")
        self.assertEqual(self.findings({"tools/a.h": "\n" * 500}, known={key: 500}), [])
        self.assertEqual(self.findings({"tools/a.h": "\n" * 501}, known={key: 500}),
                         ["tools/a.h:1: header, 501 lines, limit 450"])

    def test_exceptions_that_nothing_needs_are_findings(self):
        key = ("function", "tools/a.cpp", "f")
        expected = ["tools/a.cpp:1: function f is within 60 lines, or gone: its exception goes, too"]
        for files in ({}, {"tools/a.cpp": "void f() {}"}):
            self.assertEqual(self.findings(files, allowed={key: "a table"}), expected)
            self.assertEqual(self.findings(files, known={key: 70}), expected)

    def test_other_folders_and_files_are_not_looked_at(self):
        self.assertEqual(self.findings({"tests/a.cpp": "\n" * 900, "simulator/table.inc": "\n" * 900}), [])


if __name__ == "__main__":
    unittest.main()
