// Lets programs and libraries that are built on a newer glibc run on glibc 2.35.
//
// When a function changes, glibc gives it a new symbol version, or its headers give it a new name, and the linker takes
// the newest. The libstdc++.a of a newer distribution refers to these as well, so our own code cannot avoid them. This
// file is linked into every program and library of gpupool and defines those names by functions of glibc 2.35.
// scripts/check-glibc prints the symbols that are too new, which are missing here.
//
// Threads: any. Errors: as the functions that are called.
#include <features.h>

#if defined(__x86_64__) && defined(__GLIBC__) && __GLIBC_PREREQ(2, 36)

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden")))
// `name` refers to glibc's `symbol` in a version older than 2.35.
#define OLD(name, symbol, version) __asm__(".symver " #name "," #symbol "@GLIBC_" version)

// 2.36. std::random_device uses it if it existed when libstdc++ was built.
extern long getrandom(void* buffer, size_t bytes, unsigned flags);

HIDDEN uint32_t arc4random(void) {
    uint32_t number = 0;
    while (getrandom(&number, sizeof number, 0) != (long)sizeof number) {
        // Only early after boot: the kernel's generator is not ready and a signal arrives.
    }
    return number;
}

#if __GLIBC_PREREQ(2, 38)

// 2.38. The names of strtol and scanf since C23 (which also read 0b numbers; gpupool has none).
typedef struct _IO_FILE stream;
#define NUMBER(type, function, character)                                               \
    extern type old_##function(const character* text, character** end, int base);       \
    OLD(old_##function, function, "2.2.5");                                             \
    HIDDEN type __isoc23_##function(const character* text, character** end, int base) { \
        return old_##function(text, end, base);                                         \
    }
NUMBER(long, strtol, char)
NUMBER(unsigned long, strtoul, char)
NUMBER(long long, strtoll, char)
NUMBER(unsigned long long, strtoull, char)
NUMBER(intmax_t, strtoimax, char)
NUMBER(uintmax_t, strtoumax, char)
NUMBER(long, wcstol, wchar_t)
NUMBER(unsigned long, wcstoul, wchar_t)
NUMBER(long long, wcstoll, wchar_t)
NUMBER(unsigned long long, wcstoull, wchar_t)

extern int old_vsscanf(const char* text, const char* format, va_list arguments);
OLD(old_vsscanf, __isoc99_vsscanf, "2.7");
extern int old_vfscanf(stream* from, const char* format, va_list arguments);
OLD(old_vfscanf, __isoc99_vfscanf, "2.7");

HIDDEN int __isoc23_vsscanf(const char* text, const char* format, va_list arguments) {
    return old_vsscanf(text, format, arguments);
}

HIDDEN int __isoc23_vfscanf(stream* from, const char* format, va_list arguments) {
    return old_vfscanf(from, format, arguments);
}

HIDDEN int __isoc23_sscanf(const char* text, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int count = old_vsscanf(text, format, arguments);
    va_end(arguments);
    return count;
}

HIDDEN int __isoc23_fscanf(stream* from, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int count = old_vfscanf(from, format, arguments);
    va_end(arguments);
    return count;
}

// 2.38. Versions of these functions without the old error reporting.
extern double old_fmod(double x, double y);
OLD(old_fmod, fmod, "2.2.5");
HIDDEN double fmod(double x, double y) {
    return old_fmod(x, y);
}
extern float old_fmodf(float x, float y);
OLD(old_fmodf, fmodf, "2.2.5");
HIDDEN float fmodf(float x, float y) {
    return old_fmodf(x, y);
}

#endif  // 2.38
#endif  // 2.36
