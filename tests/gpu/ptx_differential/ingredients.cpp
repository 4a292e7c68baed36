#include "tests/gpu/ptx_differential/ingredients.h"

#include <algorithm>
#include <initializer_list>

namespace gpupool::differential {
namespace {

using Words = std::initializer_list<const char*>;

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}
bool has_any(const std::string& text, Words parts) {
    return std::any_of(parts.begin(), parts.end(), [&](const char* part) { return has(text, part); });
}
bool begins_with_any(const std::string& text, Words starts) {
    return std::any_of(starts.begin(), starts.end(), [&](const char* start) { return text.starts_with(start); });
}

bool is_left_out(const Instruction& instruction) {
    const std::string& text = instruction.text;
    if (instruction.tolerance.rule != Tolerance::Rule::exact) {
        return true;
    }
    // Results that PTX leaves undefined, or where the GPU deviates from the PTX manual.
    if (begins_with_any(text, {"bfe.u64", "bfe.s64", "bfi.b64", "vadd.u32.u32.u32.sat", "vmad.u32"})) {
        return true;
    }
    // The smallest number divided by -1. Divisions with positive divisors are added below.
    if (has_any(text, {"div.s16", "div.s32", "div.s64", "rem.s"})) {
        return true;
    }
    const bool is_half = has(text, "f16");
    // Without a rounding mode these may be contracted into fma.
    if (is_half && begins_with_any(text, {"add.", "sub.", "mul."}) && !has(text, ".rn.")) {
        return true;
    }
    return is_half && has(text, ".xorsign");  // a NaN's sign is visible, and packed NaNs cannot be cleaned
}

// Instructions that the driver's assembler is known to turn into one machine instruction, which the guard then covers.
bool is_guardable(const std::string& text) {
    const std::string mnemonic = text.substr(0, text.find(' '));
    static const std::initializer_list<const char*> all = {
        "add.u32",     "add.s32",     "sub.u32",      "sub.s32",    "and.b32",    "or.b32",     "xor.b32",
        "not.b32",     "min.s32",     "max.s32",      "min.u32",    "max.u32",    "mul.lo.u32", "mul.lo.s32",
        "mad.lo.u32",  "mad.lo.s32",  "add.rn.f32",   "sub.rn.f32", "mul.rn.f32", "fma.rn.f32", "add.rz.f32",
        "mul.rp.f32",  "fma.rm.f32",  "add.rn.f64",   "mul.rn.f64", "fma.rn.f64", "fma.rz.f64", "add.rp.f64",
        "selp.b32",    "popc.b32",    "brev.b32",     "prmt.b32",   "lop3.b32",   "min.f32",    "max.f32",
        "setp.lt.s32", "setp.eq.u32", "setp.gtu.f32", "setp.le.f64"};
    return std::any_of(all.begin(), all.end(), [&](const char* one) { return mnemonic == one; });
}

struct List {
    std::vector<Ingredient> rows;

    Ingredient& add(const std::string& text, Kind result, const std::string& operands) {
        rows.push_back({{text, result, operands, {}}, false, false, false, false});
        return rows.back();
    }
    void together(const std::string& text, Kind result, const std::string& operands) {
        add(text, result, operands).together = true;
    }
};

// Integer division by positive numbers, half arithmetic without contraction, and reinterpretation of bits.
void more_arithmetic(List& list) {
    const struct {
        const char *type, *most;
        Kind kind;
    } types[] = {{"16", "0x7fff", 'H'}, {"32", "0x7fffffff", 'R'}, {"64", "0x7fffffffffffffff", 'L'}};
    for (const auto& [type, most, kind] : types) {
        const std::string b = std::string(".b") + type;
        for (const std::string op : {"div", "rem"}) {
            list.add("{ .reg " + b + " %q; and" + b + " %q, {b}, " + most + "; or" + b + " %q, %q, 1; " + op + ".s" +
                         type + " {d}, {a}, %q; }",
                     kind, {kind, kind});
        }
    }
    for (const std::string op : {"add", "sub", "mul"}) {
        for (const std::string modifier : {".ftz", ".sat", ".ftz.sat"}) {
            list.add(op + ".rn" + modifier + ".f16 {d}, {a}, {b};", 'h', "hh");
            list.add(op + ".rn" + modifier + ".f16x2 {d}, {a}, {b};", 'x', "xx");
        }
    }
    list.add("mov.b32 {d}, {a};", 'R', "F").cleans_nans = true;
    list.add("mov.b64 {d}, {a};", 'L', "D").cleans_nans = true;
    list.add("mov.b32 {d}, {a};", 'F', "R");
    list.add("mov.b64 {d}, {a};", 'D', "L");
    list.add("mov.b16 {d}, {a};", 'h', "H");
    list.add("mov.b16 {d}, {a};", 'b', "H");
    list.add("mov.b32 {d}, {{a}, {b}};", 'R', "HH");
    list.add("mov.b32 {d}, {{a}, {b}};", 'x', "hh");
    list.add("mov.b32 {d}, {{a}, {b}};", 'y', "bb");
    list.add("mov.b64 {d}, {{a}, {b}};", 'L', "RR");
    list.add("{ .reg .b16 %q; mov.b32 {{d}, %q}, {a}; }", 'H', "R");
    list.add("{ .reg .b16 %q; mov.b32 {%q, {d}}, {a}; }", 'H', "R");
    list.add("{ .reg .b16 %q; mov.b32 {%q, {d}}, {a}; }", 'h', "x");
    list.add("{ .reg .b16 %q; mov.b32 {{d}, %q}, {a}; }", 'b', "y");
    list.add("{ .reg .b32 %q; mov.b64 {{d}, %q}, {a}; }", 'R', "L");
    list.add("{ .reg .b32 %q; mov.b64 {%q, {d}}, {a}; }", 'R', "L");
    for (const Kind kind : {'F', 'D'}) {
        const std::string type = kind == 'F' ? ".f32" : ".f64";
        list.add("selp" + type + " {d}, {a}, {b}, {c};", kind, std::string{kind, kind, 'p'});
    }
}

// A thread's local memory at computed places, in the local space and through generic addresses.
void local_memory(List& list) {
    const std::string open = "{ .reg .b32 %q, %s; mov.u32 %s, scratch; ",
                      to = "and.b32 %q, {b}, 7; mad.lo.u32 %q, %q, 8, %s; ",
                      from = "and.b32 %q, {c}, 7; mad.lo.u32 %q, %q, 8, %s; ";
    list.add(open + to + "st.local.b64 [%q], {a}; " + from + "ld.local.b64 {d}, [%q]; }", 'L', "LSS");
    list.add(open + to + "st.local.b32 [%q+4], {a}; " + from + "ld.local.b64 {d}, [%q]; }", 'L', "RSS");
    list.add(open + to + "st.local.v2.b32 [%q], {{a}, {c}}; " + from + "ld.local.s16 {d}, [%q+2]; }", 'R', "RSR");
    list.add(
        "{ .reg .b32 %q; .reg .b64 %g, %h; mov.u64 %g, scratch; cvta.local.u64 %g, %g; and.b32 %q, {b}, 63; "
        "cvt.u64.u32 %h, %q; add.u64 %h, %g, %h; st.u8 [%h], {a}; and.b32 %q, {c}, 7; mul.wide.u32 %h, %q, 8; "
        "add.u64 %g, %g, %h; ld.s32 {d}, [%g]; }",
        'R', "RSS");
}

void functions(List& list) {
    const std::string give = "st.param.b32 [pa], {a}; st.param.b32 [pb], {b}; ", take = "ld.param.b32 {d}, [pr]; }";
    for (const std::string function : {"twist", "climb"}) {
        list.add("{ .param .b32 pa, pb, pr; " + give + "call (pr), " + function + ", (pa, pb); " + take, 'R', "RR");
    }
    list.add(
        "{ .reg .b64 %f, %g; .param .b32 pa, pb, pr; mov.u64 %f, twist; mov.u64 %g, climb; selp.b64 %f, %f, %g, {c}; " +
            give +
            "form: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _); call (pr), %f, (pa, pb), form; " +
            take,
        'R', "RRp");
}

// Over all 32 lanes of each warp.
void warps(List& list) {
    for (const std::string form :
         {"bfly.b32 {d}, {a}, 5, 31", "up.b32 {d}, {a}, 3, 0", "down.b32 {d}, {a}, 7, 31", "up.b32 {d}, {a}, 1, 0x1800",
          "down.b32 {d}, {a}, 2, 0x181f", "bfly.b32 {d}, {a}, 2, 0x1c1f"}) {
        list.together("shfl.sync." + form + ", -1;", 'R', "R");
        list.together("shfl.sync." + form + ", -1;", 'F', "F");
    }
    list.together("{ .reg .b32 %q; and.b32 %q, {b}, 31; shfl.sync.idx.b32 {d}, {a}, %q, 31, -1; }", 'R', "RR");
    list.together("{ .reg .b32 %q; shfl.sync.up.b32 %q|{d}, {a}, 6, 0, -1; }", 'p', "R");
    list.together("{ .reg .b32 %q; shfl.sync.idx.b32 %q|{d}, {a}, 20, 0x100f, -1; }", 'p', "R");
    for (const std::string mode : {"all", "any", "uni"}) {
        list.together("vote.sync." + mode + ".pred {d}, {a}, -1;", 'p', "p");
    }
    list.together("vote.sync.ballot.b32 {d}, {a}, -1;", 'R', "p");
    list.together("match.any.sync.b32 {d}, {a}, -1;", 'R', "R");
    list.together("match.any.sync.b64 {d}, {a}, -1;", 'R', "L");
    list.together("{ .reg .b32 %q; and.b32 %q, {a}, 3; match.any.sync.b32 {d}, %q, -1; }", 'R', "R");
    list.together("{ .reg .pred %q; match.all.sync.b32 {d}|%q, {a}, -1; }", 'R', "R");
    for (const std::string type :
         {"add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32"}) {
        list.together("redux.sync." + type + " {d}, {a}, -1;", 'R', "R");
    }
}

// Data exchange between the threads of a block.
void blocks(List& list) {
    const std::string mask = std::to_string(kThreadsPerBlock - 1);
    const std::string open =
        "{ .reg .b32 %q, %s, %t; mov.u32 %s, exchange; mov.u32 %t, %tid.x; mad.lo.u32 %q, %t, 8, %s; ";
    const std::string other = "add.u32 %t, %t, {b}; and.b32 %t, %t, " + mask + "; mad.lo.u32 %q, %t, 8, %s; ";
    const std::string barrier = "bar.sync 0; ";
    for (const Kind kind : {'R', 'F', 'L', 'D'}) {
        const std::string type = width_bits(kind) == 32 ? ".b32" : ".b64";
        list.together(open + "st.shared" + type + " [%q], {a}; " + barrier + other + "ld.shared" + type +
                          " {d}, [%q]; " + barrier + "}",
                      kind, {kind, 'S'});
    }
    for (const std::string op :
         {"add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "min.u32", "max.s32"}) {
        list.together(open + "st.shared.b32 [%q], {a}; " + barrier + "and.b32 %t, {b}, 15; mad.lo.u32 %t, %t, 8, %s; " +
                          "red.shared." + op + " [%t], {c}; " + barrier + "ld.shared.b32 {d}, [%q]; " + barrier + "}",
                      'R', "RSR");
    }
    list.together("{ .reg .pred %q; setp.lt.s32 %q, {a}, {b}; bar.red.popc.u32 {d}, 0, %q; }", 'R', "RR");
    list.together("bar.red.and.pred {d}, 0, {a};", 'p', "p");
    list.together("bar.red.or.pred {d}, 0, {a};", 'p', "p");
}

}  // namespace

std::vector<Ingredient> ingredients() {
    List list;
    for (const auto& instruction : all_instructions()) {
        if (is_left_out(instruction)) {
            continue;
        }
        const std::string& text = instruction.text;
        Ingredient& one = list.add(text, instruction.result, instruction.operands);
        one.through_memory = begins_with_any(text, {"cvt.", "set."});
        one.cleans_nans = has_any(text, {"copysign", "xorsign", "cvt.rna.tf32"});
        one.guardable = is_guardable(text);
    }
    more_arithmetic(list);
    local_memory(list);
    functions(list);
    warps(list);
    blocks(list);
    return list.rows;
}

std::string program_functions() {
    return ".func (.param .b32 r) twist(.param .b32 a, .param .b32 b) {\n"
           ".reg .b32 %a, %b; .reg .pred %p;\n"
           "ld.param.b32 %a, [a]; ld.param.b32 %b, [b];\n"
           "setp.lt.s32 %p, %a, %b;\n"
           "@%p bra $less;\n"
           "sub.u32 %a, %a, %b; shf.l.wrap.b32 %a, %a, %a, 7;\n"
           "bra.uni $done;\n"
           "$less:\n"
           "xor.b32 %a, %a, %b; mul.hi.u32 %a, %a, 0x9E3779B9;\n"
           "$done:\n"
           "st.param.b32 [r], %a; ret;\n}\n"
           ".func (.param .b32 r) climb(.param .b32 a, .param .b32 b) {\n"
           ".reg .b32 %a, %b, %n, %s; .reg .pred %p;\n"
           "ld.param.b32 %a, [a]; ld.param.b32 %b, [b];\n"
           "and.b32 %n, %b, 15; mov.u32 %s, 0;\n"
           "$again:\n"
           "mad.lo.u32 %s, %s, 3, %a; and.b32 %b, %s, 1; setp.eq.u32 %p, %b, 0; @%p shr.u32 %a, %a, 1;\n"
           "setp.ne.u32 %p, %n, 0; sub.u32 %n, %n, 1; @%p bra $again;\n"
           "st.param.b32 [r], %s; ret;\n}\n";
}

std::string program_variables() {
    std::string text =
        ".local .align 8 .b64 scratch[8]; .shared .align 8 .b64 exchange[" + std::to_string(kThreadsPerBlock) + "];\n";
    for (unsigned i = 0; i < 8; ++i) {
        text += "st.local.u64 [scratch+" + std::to_string(i * 8) + "], 0;\n";
    }
    return text;
}

}  // namespace gpupool::differential
