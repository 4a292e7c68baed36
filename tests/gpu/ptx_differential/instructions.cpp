#include "tests/gpu/ptx_differential/instructions.h"

#include <initializer_list>

namespace gpupool::differential {
namespace {

using Words = std::initializer_list<const char*>;

struct Table {
    std::vector<Instruction> rows;

    void add(const std::string& text, Kind result, const std::string& operands, const Tolerance& tolerance = {}) {
        rows.push_back({text, result, operands, tolerance});
    }
    // "MNEMONIC {d}, {a}, ..." with as many operands as there are kinds.
    void plain(const std::string& mnemonic, Kind result, const std::string& operands, const Tolerance& tolerance = {}) {
        std::string text = mnemonic + " {d}";
        for (std::size_t i = 0; i < operands.size(); ++i) {
            text += std::string(", {") + char('a' + i) + "}";
        }
        add(text + ";", result, operands, tolerance);
    }
};

Kind integer_kind(const std::string& type) {
    return type.substr(1) == "16" ? 'H' : type.substr(1) == "32" ? 'R' : 'L';
}

const Words kIntegerTypes = {"u16", "s16", "u32", "s32", "u64", "s64"};
const Words kRoundings = {"rn", "rz", "rm", "rp"};

void integer_arithmetic(Table& t) {
    for (const std::string type : kIntegerTypes) {
        const Kind k = integer_kind(type);
        const std::string two{k, k}, three{k, k, k};
        for (const char* op : {"add", "sub", "mul.lo", "mul.hi", "min", "max"}) {
            t.plain(std::string(op) + "." + type, k, two);
        }
        t.plain("mad.lo." + type, k, three);
        t.plain("mad.hi." + type, k, three);
        t.plain("sad." + type, k, three);
        // Division by zero gives a machine-dependent result.
        const std::string bits = ".b" + type.substr(1);
        for (const char* op : {"div", "rem"}) {
            t.add("{ .reg " + bits + " %q; or" + bits + " %q, {b}, 1; " + op + "." + type + " {d}, {a}, %q; }", k, two);
        }
        if (k != 'L') {
            const Kind wide = k == 'H' ? 'R' : 'L';
            t.plain("mul.wide." + type, wide, two);
            t.plain("mad.wide." + type, wide, two + wide);
        }
        if (type[0] == 's') {
            t.plain("abs." + type, k, {k});
            t.plain("neg." + type, k, {k});
        }
    }
    for (const char* text : {"add.sat.s32", "sub.sat.s32"}) {
        t.plain(text, 'R', "RR");
    }
    t.plain("mad.hi.sat.s32", 'R', "RRR");
    for (const std::string type : {"u32", "s32"}) {
        for (const char* half : {"lo", "hi"}) {
            t.plain(std::string("mul24.") + half + "." + type, 'R', "RR");
            t.plain(std::string("mad24.") + half + "." + type, 'R', "RRR");
        }
        for (const std::string other : {"u32", "s32"}) {
            t.plain("dp4a." + type + "." + other, 'R', "RRR");
            t.plain("dp2a.lo." + type + "." + other, 'R', "RRR");
            t.plain("dp2a.hi." + type + "." + other, 'R', "RRR");
        }
        for (const char* mode : {"wrap", "clamp"}) {
            t.plain(std::string("szext.") + mode + "." + type, 'R', "RS");
        }
    }
    for (const std::string type : {"u32", "s32", "u64", "s64"}) {
        const Kind k = integer_kind(type);
        const std::string two{k, k};
        const std::string move =
            k == 'R' ? "shl.b32 %c, %c, 7; xor.b32 {d}, %r, %c;" : "shl.b64 %c, %c, 7; xor.b64 {d}, %r, %c;";
        const std::string open = "{ .reg .b" + type.substr(1) + " %r, %c; ";
        t.add(open + "add.cc." + type + " %r, {a}, {b}; addc." + type + " %c, {a}, 5; " + move + " }", k, two);
        t.add(open + "sub.cc." + type + " %r, {a}, {b}; subc." + type + " %c, {b}, 5; " + move + " }", k, two);
        t.add(open + "mad.lo.cc." + type + " %r, {a}, {b}, {c}; madc.hi." + type + " %c, {a}, {b}, 1; " + move + " }",
              k, two + k);
    }
    for (const char* type : {"u16x2", "s16x2"}) {
        for (const char* op : {"add", "min", "max"}) {
            t.plain(std::string(op) + "." + type, 'R', "RR");
        }
    }
    for (const char* op : {"min.relu.s32", "max.relu.s32", "min.relu.s16x2", "max.relu.s16x2"}) {
        t.plain(op, 'R', "RR");
    }
}

void bits(Table& t) {
    for (const std::string width : {"16", "32", "64"}) {
        const Kind k = width == "16" ? 'H' : width == "32" ? 'R' : 'L';
        const std::string one{k}, two{k, k};
        for (const char* op : {"and", "or", "xor"}) {
            t.plain(std::string(op) + ".b" + width, k, two);
        }
        for (const char* op : {"not", "cnot"}) {
            t.plain(std::string(op) + ".b" + width, k, one);
        }
        t.plain("shl.b" + width, k, one + "S");
        for (const char* type : {"b", "u", "s"}) {
            t.plain("shr." + std::string(type) + width, k, one + "S");
        }
        t.plain("selp.b" + width, k, two + "p");
        if (width == "16") {
            continue;
        }
        t.plain("popc.b" + width, 'R', one);
        t.plain("clz.b" + width, 'R', one);
        t.plain("brev.b" + width, k, one);
        t.add("bfi.b" + width + " {d}, {a}, {b}, {c}, 11;", k, two + "S");
        t.add("bfi.b" + width + " {d}, {a}, {b}, 5, {c};", k, two + "S");
        for (const char* type : {"u", "s"}) {
            t.plain("bfe." + std::string(type) + width, k, one + "SS");
            t.plain("bfind." + std::string(type) + width, 'R', one);
            t.plain("bfind.shiftamt." + std::string(type) + width, 'R', one);
        }
    }
    for (const char* op : {"and", "or", "xor"}) {
        t.plain(std::string(op) + ".pred", 'p', "pp");
    }
    t.plain("not.pred", 'p', "p");
    for (const char* table : {"0x80", "0xfe", "0x96", "0xe8", "0xca", "0x1b", "0x00", "0xff", "0x6a"}) {
        t.add(std::string("lop3.b32 {d}, {a}, {b}, {c}, ") + table + ";", 'R', "RRR");
    }
    for (const char* direction : {"l", "r"}) {
        for (const char* mode : {"clamp", "wrap"}) {
            t.plain(std::string("shf.") + direction + "." + mode + ".b32", 'R', "RRS");
        }
    }
    t.plain("prmt.b32", 'R', "RRR");
    for (const char* mode : {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"}) {
        t.plain(std::string("prmt.b32.") + mode, 'R', "RRR");
    }
    for (const char* mode : {"clamp", "wrap"}) {
        t.plain(std::string("bmsk.") + mode + ".b32", 'R', "SS");
    }
    t.add("{ .reg .b32 %n; and.b32 %n, {b}, 31; and.b32 %o, {c}, 7; fns.b32 {d}, {a}, %n, %o; }", 'R', "RSS");
    t.rows.back().text.insert(t.rows.back().text.find("%n;") + 2, ", %o");
    for (const char* type : {"u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64"}) {
        const std::string name = type;
        const Kind k = name == "f32" ? 'F' : name == "f64" ? 'D' : integer_kind(name);
        t.plain("slct." + name + ".s32", k, std::string{k, k, 'R'});
        t.plain("slct." + name + ".f32", k, std::string{k, k, 'F'});
    }
}

void video(Table& t) {
    for (const std::string op : {"vadd", "vsub", "vabsdiff", "vmin", "vmax"}) {
        t.add(op + ".s32.s32.s32 {d}, {a}, {b};", 'R', "RR");
        t.add(op + ".u32.u32.u32.sat {d}, {a}, {b};", 'R', "RR");
        t.add(op + ".s32.u32.s32.sat {d}, {a}.h1, {b}.b2;", 'R', "RR");
        t.add(op + ".s32.s32.s32.add {d}, {a}.b0, {b}.b3, {c};", 'R', "RRR");
        t.add(op + ".u32.u32.u32 {d}.h0, {a}.h1, {b}, {c};", 'R', "RRR");
    }
    for (const std::string op : {"vshl", "vshr"}) {
        t.add(op + ".u32.u32.u32.clamp {d}, {a}, {b};", 'R', "RS");
        t.add(op + ".s32.s32.u32.wrap.add {d}, {a}, {b}, {c};", 'R', "RSR");
    }
    t.add("vmad.s32.s32.s32 {d}, {a}.h0, {b}.h1, {c};", 'R', "RRR");
    t.add("vmad.u32.u32.u32.shr7 {d}, {a}.h0, {b}.h1, {c};", 'R', "RRR");
    t.add("vmad.s32.s32.s32.sat.shr15 {d}, {a}.h0, {b}.h1, {c};", 'R', "RRR");
    for (const char* comparison : {"eq", "lt", "ge"}) {
        t.add(std::string("vset.s32.s32.") + comparison + " {d}, {a}, {b}.h0;", 'R', "RR");
        t.add(std::string("vset4.u32.u32.") + comparison + " {d}, {a}, {b}, {c};", 'R', "RRR");
    }
    for (const std::string op : {"vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"}) {
        t.add(op + "2.s32.s32.s32.sat {d}, {a}, {b}, {c};", 'R', "RRR");
        t.add(op + "2.u32.u32.u32 {d}, {a}, {b}, {c};", 'R', "RRR");
        t.add(op + "4.u32.u32.u32.sat {d}, {a}, {b}, {c};", 'R', "RRR");
        t.add(op + "4.s32.s32.s32.add {d}, {a}, {b}, {c};", 'R', "RRR");
    }
}

void comparisons(Table& t) {
    const Words of_signed = {"eq", "ne", "lt", "le", "gt", "ge"};
    const Words of_unsigned = {"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"};
    const Words of_floats = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                             "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
    const auto both = [&](const std::string& comparison, const std::string& type, Kind k) {
        t.plain("setp." + comparison + "." + type, 'p', std::string{k, k});
        t.plain("set." + comparison + ".u32." + type, 'R', std::string{k, k});
    };
    for (const std::string type : kIntegerTypes) {
        const Kind k = integer_kind(type);
        for (const char* comparison : type[0] == 's' ? of_signed : of_unsigned) {
            both(comparison, type, k);
        }
        for (const char* logic : {"and", "or", "xor"}) {
            t.plain(std::string("setp.lt.") + logic + "." + type, 'p', std::string{k, k, 'p'});
        }
        t.plain("set.ge.f32." + type, 'F', std::string{k, k});
    }
    for (const char* comparison : of_floats) {
        both(comparison, "f32", 'F');
        both(std::string(comparison) + ".ftz", "f32", 'F');
        both(comparison, "f64", 'D');
        t.plain(std::string("setp.") + comparison + ".f16", 'p', "hh");
        t.plain(std::string("setp.") + comparison + ".bf16", 'p', "bb");
        t.plain(std::string("set.") + comparison + ".f16x2.f16x2", 'x', "xx");
        t.plain(std::string("set.") + comparison + ".u32.bf16x2", 'R', "yy");
    }
    t.plain("set.lt.f32.f32", 'F', "FF");
    t.plain("set.lt.and.s32.f64", 'R', "DDp");
    for (const char* test : {"finite", "infinite", "number", "notanumber", "normal", "subnormal"}) {
        t.plain(std::string("testp.") + test + ".f32", 'p', "F");
        t.plain(std::string("testp.") + test + ".f64", 'p', "D");
    }
}

void float_arithmetic(Table& t) {
    for (const std::string rounding : kRoundings) {
        for (const char* modifier : {"", ".ftz", ".sat", ".ftz.sat"}) {
            const std::string end = rounding + modifier + ".f32";
            for (const char* op : {"add.", "sub.", "mul."}) {
                t.plain(op + end, 'F', "FF");
            }
            t.plain("fma." + end, 'F', "FFF");
        }
        for (const char* modifier : {"", ".ftz"}) {
            const std::string end = rounding + modifier + ".f32";
            t.plain("div." + end, 'F', "FF");
            t.plain("rcp." + end, 'F', "F");
            t.plain("sqrt." + end, 'F', "F");
        }
        for (const char* op : {"add.", "sub.", "mul.", "div."}) {
            t.plain(op + rounding + ".f64", 'D', "DD");
        }
        t.plain("fma." + rounding + ".f64", 'D', "DDD");
        t.plain("mad." + rounding + ".f64", 'D', "DDD");
        t.plain("rcp." + rounding + ".f64", 'D', "D");
        t.plain("sqrt." + rounding + ".f64", 'D', "D");
    }
    t.plain("mad.rn.f32", 'F', "FFF");
    for (const char* op : {"min", "max"}) {
        for (const char* modifier : {"", ".ftz", ".NaN", ".ftz.NaN", ".xorsign.abs", ".NaN.xorsign.abs"}) {
            t.plain(std::string(op) + modifier + ".f32", 'F', "FF");
        }
        t.plain(std::string(op) + ".f64", 'D', "DD");
    }
    for (const char* op : {"abs", "neg"}) {
        t.plain(std::string(op) + ".f32", 'F', "F");
        t.plain(std::string(op) + ".ftz.f32", 'F', "F");
        t.plain(std::string(op) + ".f64", 'D', "D");
    }
    t.plain("copysign.f32", 'F', "FF");
    t.plain("copysign.f64", 'D', "DD");
}

void approximations(Table& t) {
    using Rule = Tolerance::Rule;
    const auto power = [](double exponent) { return __builtin_exp2(exponent); };
    const double ulp = power(-23), least = power(-126), most = power(126), pi = 3.1415927;
    for (const std::string ftz : {"", ".ftz"}) {
        t.plain("div.approx" + ftz + ".f32", 'F', "FF", {Rule::relative, 4 * ulp, least, most, true});
        t.plain("div.full" + ftz + ".f32", 'F', "FF", {Rule::relative, 4 * ulp, least, most, true});
        t.plain("rcp.approx" + ftz + ".f32", 'F', "F", {Rule::relative, 2 * ulp});
        t.plain("sqrt.approx" + ftz + ".f32", 'F', "F", {Rule::relative, 2 * power(-23)});
        t.plain("rsqrt.approx" + ftz + ".f32", 'F', "F", {Rule::relative, 2 * power(-22.9)});
        t.plain("sin.approx" + ftz + ".f32", 'F', "F", {Rule::absolute, 2 * power(-20.9), 0, pi});
        t.plain("cos.approx" + ftz + ".f32", 'F', "F", {Rule::absolute, 2 * power(-20.9), 0, pi});
        t.plain("lg2.approx" + ftz + ".f32", 'F', "F", {Rule::either, 2 * power(-22)});
        t.plain("ex2.approx" + ftz + ".f32", 'F', "F", {Rule::relative, 2 * power(-22)});
    }
    t.plain("tanh.approx.f32", 'F', "F", {Rule::relative, 2 * power(-11)});
    t.plain("rcp.approx.ftz.f64", 'D', "D", {Rule::relative, 2 * power(-20)});
    t.plain("rsqrt.approx.f64", 'D', "D", {Rule::relative, 2 * power(-20)});
    t.plain("rsqrt.approx.ftz.f64", 'D', "D", {Rule::relative, 2 * power(-20)});
    t.plain("ex2.approx.f16", 'h', "h", {Rule::relative, 2 * power(-9.9)});
    t.plain("ex2.approx.f16x2", 'x', "x", {Rule::relative, 2 * power(-9.9)});
    t.plain("ex2.approx.ftz.bf16", 'b', "b", {Rule::relative, 2 * power(-7)});
    t.plain("ex2.approx.ftz.bf16x2", 'y', "y", {Rule::relative, 2 * power(-7)});
    t.plain("tanh.approx.f16", 'h', "h", {Rule::absolute, 2 * power(-10.987)});
    t.plain("tanh.approx.f16x2", 'x', "x", {Rule::absolute, 2 * power(-10.987)});
    t.plain("tanh.approx.bf16", 'b', "b", {Rule::absolute, 2 * power(-8)});
    t.plain("tanh.approx.bf16x2", 'y', "y", {Rule::absolute, 2 * power(-8)});
}

void half_arithmetic(Table& t) {
    const struct {
        const char* type;
        Kind kind;
    } types[] = {{"f16", 'h'}, {"f16x2", 'x'}, {"bf16", 'b'}, {"bf16x2", 'y'}};
    for (const auto& [type, k] : types) {
        const std::string end = std::string(".") + type, two{k, k}, three{k, k, k};
        const bool is_bfloat = type[0] == 'b';
        for (const char* op : {"add", "sub", "mul"}) {
            t.plain(op + end, k, two);
            t.plain(std::string(op) + ".rn" + end, k, two);
            if (is_bfloat) {
                continue;
            }
            for (const char* modifier : {".ftz", ".sat", ".ftz.sat"}) {
                t.plain(std::string(op) + modifier + end, k, two);
            }
        }
        t.plain("fma.rn" + end, k, three);
        t.plain("fma.rn.relu" + end, k, three);
        if (!is_bfloat) {
            for (const char* modifier : {".ftz", ".sat", ".ftz.sat", ".ftz.relu"}) {
                t.plain(std::string("fma.rn") + modifier + end, k, three);
            }
        }
        for (const char* op : {"min", "max"}) {
            for (const char* modifier : {"", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"}) {
                t.plain(std::string(op) + modifier + end, k, two);
            }
            if (!is_bfloat) {
                t.plain(std::string(op) + ".ftz" + end, k, two);
            }
        }
        t.plain("neg" + end, k, {k});
        t.plain("abs" + end, k, {k});
    }
}

void conversions(Table& t) {
    // Conversions to and from 8 bits, through wider registers.
    const Words small = {"u8", "s8"};
    const auto kind_of = [](const std::string& type) { return type.substr(1) == "8" ? 'R' : integer_kind(type); };
    std::vector<std::string> integers(kIntegerTypes.begin(), kIntegerTypes.end());
    integers.insert(integers.end(), small.begin(), small.end());
    for (const auto& to : integers) {
        for (const auto& from : integers) {
            if (to == from) {
                continue;
            }
            t.plain("cvt." + to + "." + from, kind_of(to), {kind_of(from)});
            // Where every value fits, the assembler rejects saturation.
            const bool fits = std::stoi(to.substr(1)) > std::stoi(from.substr(1)) && (to[0] == 's' || from[0] == 'u');
            if (!fits) {
                t.plain("cvt.sat." + to + "." + from, kind_of(to), {kind_of(from)});
            }
        }
        for (const std::string rounding : {"rni", "rzi", "rmi", "rpi"}) {
            t.plain("cvt." + rounding + "." + to + ".f32", kind_of(to), "F");
            t.plain("cvt." + rounding + ".ftz." + to + ".f32", kind_of(to), "F");
            t.plain("cvt." + rounding + "." + to + ".f64", kind_of(to), "D");
            t.plain("cvt." + rounding + "." + to + ".f16", kind_of(to), "h");
            if (to.substr(1) != "8") {
                t.plain("cvt." + rounding + "." + to + ".bf16", kind_of(to), "b");
            }
        }
        t.plain("cvt.rzi.sat." + to + ".f32", kind_of(to), "F");
        for (const std::string rounding : kRoundings) {
            t.plain("cvt." + rounding + ".f32." + to, 'F', {kind_of(to)});
            t.plain("cvt." + rounding + ".f64." + to, 'D', {kind_of(to)});
            t.plain("cvt." + rounding + ".f16." + to, 'h', {kind_of(to)});
            if (to.substr(1) != "8") {
                t.plain("cvt." + rounding + ".bf16." + to, 'b', {kind_of(to)});
            }
        }
        t.plain("cvt.rn.sat.f32." + to, 'F', {kind_of(to)});
    }
    for (const std::string rounding : kRoundings) {
        t.plain("cvt." + rounding + ".f32.f64", 'F', "D");
        t.plain("cvt." + rounding + ".ftz.f32.f64", 'F', "D");
        t.plain("cvt." + rounding + ".sat.f32.f64", 'F', "D");
        t.plain("cvt." + rounding + ".f16.f32", 'h', "F");
        t.plain("cvt." + rounding + ".f16.f64", 'h', "D");
    }
    for (const std::string rounding : {"rni", "rzi", "rmi", "rpi"}) {
        t.plain("cvt." + rounding + ".f32.f32", 'F', "F");
        t.plain("cvt." + rounding + ".ftz.f32.f32", 'F', "F");
        t.plain("cvt." + rounding + ".sat.f32.f32", 'F', "F");
        t.plain("cvt." + rounding + ".f64.f64", 'D', "D");
        t.plain("cvt." + rounding + ".f16.f16", 'h', "h");
    }
    for (const char* text : {"cvt.f64.f32", "cvt.ftz.f64.f32"}) {
        t.plain(text, 'D', "F");
    }
    t.plain("cvt.sat.f32.f32", 'F', "F");
    t.plain("cvt.f32.f16", 'F', "h");
    t.plain("cvt.ftz.f32.f16", 'F', "h");
    t.plain("cvt.f32.bf16", 'F', "b");
    t.plain("cvt.f64.f16", 'D', "h");
    for (const char* rounding : {"rn", "rz"}) {
        for (const char* relu : {"", ".relu"}) {
            t.plain(std::string("cvt.") + rounding + relu + ".f16x2.f32", 'x', "FF");
            t.plain(std::string("cvt.") + rounding + relu + ".bf16x2.f32", 'y', "FF");
            t.plain(std::string("cvt.") + rounding + relu + ".f16.f32", 'h', "F");
            t.plain(std::string("cvt.") + rounding + relu + ".bf16.f32", 'b', "F");
        }
    }
    t.plain("cvt.rna.tf32.f32", 'R', "F");
    for (const char* type : {"e4m3x2", "e5m2x2"}) {
        for (const char* relu : {"", ".relu"}) {
            t.plain(std::string("cvt.rn.satfinite") + relu + "." + type + ".f32", 'H', "FF");
            t.plain(std::string("cvt.rn.satfinite") + relu + "." + type + ".f16x2", 'H', "x");
            t.plain(std::string("cvt.rn") + relu + ".f16x2." + type, 'x', "H");
        }
    }
    for (const char* type : {"u16", "s16"}) {
        t.plain(std::string("cvt.pack.sat.") + type + ".s32", 'R', "RR");
    }
    for (const char* type : {"u8", "s8"}) {
        t.plain(std::string("cvt.pack.sat.") + type + ".s32.b32", 'R', "RRR");
    }
}

}  // namespace

unsigned width_bits(Kind kind) {
    switch (kind) {
        case 'p': return 1;
        case 'H':
        case 'h':
        case 'b': return 16;
        case 'L':
        case 'D': return 64;
        default: return 32;
    }
}

std::string Instruction::name() const {
    // The mnemonic of a single instruction, or of all instructions in a group.
    if (text[0] != '{') {
        const auto end = text.find(' ');
        const auto selectors = text.find_first_of(".", text.find("{a}"));
        return text.substr(0, end) + (selectors != std::string::npos ? " (parts)" : "");
    }
    std::string result;
    for (std::size_t at = text.find(';') + 1; at < text.size();) {
        const auto begin = text.find_first_not_of(' ', at);
        const auto end = text.find_first_of(" }", begin);
        if (begin == std::string::npos || text[begin] == '}') {
            break;
        }
        result += (result.empty() ? "" : ", ") + text.substr(begin, end - begin);
        at = text.find(';', begin) + 1;
    }
    return result;
}

std::vector<Instruction> all_instructions() {
    Table table;
    integer_arithmetic(table);
    bits(table);
    video(table);
    comparisons(table);
    float_arithmetic(table);
    approximations(table);
    half_arithmetic(table);
    conversions(table);
    return table.rows;
}

std::string fill(std::string text, const std::string& d, const std::vector<std::string>& operands) {
    const auto replace = [&](const std::string& what, const std::string& with) {
        for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size())) {
            text.replace(at, what.size(), with);
        }
    };
    replace("{d}", d);
    for (std::size_t i = 0; i < operands.size(); ++i) {
        replace(std::string("{") + char('a' + i) + "}", operands[i]);
    }
    return text;
}

}  // namespace gpupool::differential
