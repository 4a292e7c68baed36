// Lets what is built on a newer glibc run on glibc 2.35.
//
// glibc gives a function that changed a new symbol version, or a new name by way of its headers, and the linker takes
// the newest. The libstdc++.a of a newer distribution refers to these too, so that no care in our own code would help.
// This file is linked into every program and library of ours and defines those names there, in terms of what glibc 2.35
// has. scripts/check-glibc says what is missing here: it prints the symbols that are too new.
//
// Threads: any. Errors: as the functions that stand behind.
#include <features.h>

#if defined(__x86_64__) && defined(__GLIBC__) && __GLIBC_PREREQ(2, 36)

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden")))
// `name` refers to glibc's `symbol` in the version that it has had since before 2.35.
#define OLD(name, symbol, version) __asm__(".symver " #name "," #symbol "@GLIBC_" version)

// 2.36. std::random_device asks for it where it was there when libstdc++ was built.
extern long getrandom(void* buffer, size_t bytes, unsigned flags);

HIDDEN uint32_t arc4random(void) {
    uint32_t number = 0;
    while (getrandom(&number, sizeof number, 0) != (long)sizeof number) {
        // Interrupted before the kernel's generator was ready: only ever early after boot.
    }
    return number;
}

#if __GLIBC_PREREQ(2, 38)

// 2.38. What strtol and scanf are called since C23 (they also read 0b numbers, which we never have).
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

// 2.38. The same functions without the old way of reporting errors.
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
