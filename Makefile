# The front door of Esper: `make help` tells what is here. The build itself is CMake's: CMakeLists.txt and
# CMakePresets.json.
.DEFAULT_GOAL := build
.PHONY: build program run test soak bench kit wheel deb site install lint format clean help

# Further arguments of the program in `make run` and `make bench`: make run ARGS="--epochs 2"
ARGS ?=
# Warnings are errors (ON) for those who change the code; a user with a newer compiler is not stopped by them.
WERROR ?= OFF
export WERROR
# Where `make install` puts things; DESTDIR goes before it, for those who make packages.
PREFIX ?= /usr/local

build: program
	@echo "build/esper is ready: try build/esper --help, or make help"

program:
	@scripts/setup --check build
	@scripts/build release --target product

run:
	@scripts/setup run
	@scripts/build release --target esper
	./build/esper grow fashion --static-control $(ARGS)

test:
	@scripts/setup test
	@scripts/test

soak:
	@scripts/setup test
	@scripts/test soak

bench: program
	@./build/esper bench train --json $(ARGS)
	@./build/esper bench guard --json $(ARGS)

kit:
	@scripts/setup test
	@scripts/kit

wheel:
	@scripts/setup --check build
	@scripts/build release --target $(if $(ENGINE),product,esper_guard)
	@rm -rf build/wheel
	@$(if $(ENGINE),ESPER_WHEEL_ENGINE=build/libesper.so) ESPER_GUARD_LIBRARY=build/libesper-guard.so python3 bindings/python/backend/esper_build.py build/wheel

deb:
	@scripts/setup deb
	@scripts/deb

site:
	@python3 -B packaging/site/build.py build/site

install:
	@scripts/setup --check build
	@scripts/build release --target product
	@DESTDIR="$(DESTDIR)" cmake --install build --prefix "$$(realpath -m -s -- "$(PREFIX)")"

lint:
	@scripts/lint

format:
	@scripts/format

clean:
	rm -rf build

help:
	@echo "make            build the program, at build/esper, and the guard, build/libesper-guard.so"
	@echo "make run        install what is missing, build, grow a network on Fashion-MNIST before your eyes, and compare it"
	@echo "                with its fixed host; ARGS=\"...\" goes to the program"
	@echo "make test       install what is missing, build and run all tests: plain, under the address, undefined-behaviour"
	@echo "                and thread sanitizers, and some seconds of fuzzing for each parser; WERROR=ON as in CI"
	@echo "make soak       the long tests, tests at full size under the sanitizers, and longer fuzzing"
	@echo "make bench      figures of this machine, as JSON lines"
	@echo "make kit        pack program, tests and libraries into build/kit, for a machine without our packages"
	@echo "make wheel      the guard for PyTorch as a Python package with its library, below build/wheel; ENGINE=yes packs the"
	@echo "                engine too, for esper.GrowEnv on systems like this one"
	@echo "make deb        install what is missing, and build the Debian packages, into build/deb; lintian looks at them where"
	@echo "                it is installed"
	@echo "make site       the documentation as pages for a browser, in build/site: needs Python 3, and nothing else"
	@echo "make install    put the program, its man pages and completion, libesper.so, libesper-guard.so, their header, pkg-config"
	@echo "                and CMake files below PREFIX (/usr/local unless given; DESTDIR=... goes before it)"
	@echo "make lint       check the formatting, run clang-tidy and pyflakes;  make format  repairs the formatting"
	@echo "make clean      remove build/"
	@echo ""
	@echo "For a debug build: cmake --preset debug && cmake --build build/debug. More in CONTRIBUTING.md."
