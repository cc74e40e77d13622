// Command proxy adds a version of a module to a folder that GOPROXY can name: its .info, .mod and .zip.
//
//	proxy FOLDER MODULE VERSION SOURCE
package main

import (
	"archive/zip"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: proxy FOLDER MODULE VERSION SOURCE")
	}
	if err := add(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		log.Fatal(err)
	}
}

func add(folder, module, version, source string) error {
	base := filepath.Join(folder, module, "@v")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if os.IsNotExist(err) {
		mod, err = []byte("module "+module+"\n"), nil
	}
	if err != nil {
		return err
	}
	files := map[string]string{
		version + ".mod":  string(mod),
		version + ".info": fmt.Sprintf(`{"Version": %q, "Time": "2026-01-01T00:00:00Z"}`, version),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(base, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	list, err := os.OpenFile(filepath.Join(base, "list"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintln(list, version); err != nil {
		return err
	}
	if err := list.Close(); err != nil {
		return err
	}
	return pack(filepath.Join(base, version+".zip"), module+"@"+version, source)
}

// pack writes the module's files; a folder with a go.mod of its own is another module.
func pack(path, prefix, source string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	archive := zip.NewWriter(file)
	err = filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			if name != "." && (err == nil || strings.HasPrefix(entry.Name(), ".") || entry.Name() == "vendor") {
				return filepath.SkipDir
			}
			return nil
		}
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		writer, err := archive.Create(prefix + "/" + filepath.ToSlash(name))
		if err != nil {
			return err
		}
		_, err = writer.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return file.Close()
}
